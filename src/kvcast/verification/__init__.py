"""Checks that a model with a KV cache computes the same results as without one."""
