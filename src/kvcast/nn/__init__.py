"""Building blocks that several models share: attention layers, feed-forward, weight-only linears."""
