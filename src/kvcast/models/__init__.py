"""PyTorch's execution of programs, for all families."""
