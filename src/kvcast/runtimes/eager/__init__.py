"""Runs programs in eager PyTorch."""
