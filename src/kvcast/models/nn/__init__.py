"""Building blocks shared by several models: attention layers, feed-forward, quantised linears."""
