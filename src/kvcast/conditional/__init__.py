"""Cross-attention for transformers' models that can be exported with its cache, by `torch.cond`."""
