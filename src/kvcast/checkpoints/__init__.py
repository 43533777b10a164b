"""Readers of checkpoint formats, which give all tensors kvcast's canonical names."""
