"""Eager PyTorch: programs as they are."""
