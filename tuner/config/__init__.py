"""Search-space and study files."""
