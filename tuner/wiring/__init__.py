"""Study file to concrete parts: the only place where adapters meet.

``host`` is imported by the workers and must stay light; ``study`` by the command line.
"""
