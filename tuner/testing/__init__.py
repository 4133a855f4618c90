"""Fakes and contract suites, shipped for whoever writes an adapter."""
