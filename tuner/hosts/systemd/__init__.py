"""A server that is a unit of systemd: its command line, a trial's drop-in, and the lease of its host."""
