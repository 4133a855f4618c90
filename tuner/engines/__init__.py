"""One adapter an engine: pure."""
