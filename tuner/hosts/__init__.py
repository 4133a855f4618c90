"""Transports and service managers."""
