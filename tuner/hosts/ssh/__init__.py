"""Hosts that are reached over SSH: logins as OpenSSH understands them, commands, and a tunnel."""
