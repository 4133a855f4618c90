"""Prompts, the closed loop, the SSE parser and the httpx client."""
