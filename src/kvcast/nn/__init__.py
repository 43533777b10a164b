"""Building blocks that several models share: attention layers and feed-forward."""
