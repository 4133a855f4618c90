"""Hosts that have sshd and a POSIX shell, and nothing else."""
