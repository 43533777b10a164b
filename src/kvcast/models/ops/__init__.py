"""Attention with a cache as PyTorch custom operators, the same for every model and runtime."""
