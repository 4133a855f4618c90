"""What ``tuner doctor`` looks at on a host, without changing it.

Each module reads one thing through ``ports.HostTransport`` and decides, in a pure function, what a
row says of it. ``unit_host`` and ``process_host`` put the rows in order.
"""
