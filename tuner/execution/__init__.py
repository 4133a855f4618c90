"""Executors: Ray actors, and inline for tests."""
