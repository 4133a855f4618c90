"""tuner: finds the speculative-decoding and memory settings of an LLM server."""

__version__ = "0.1.0"
