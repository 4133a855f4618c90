"""The simulated SGLang server and GPU host."""
