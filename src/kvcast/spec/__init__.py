"""Facts about a model that need no tensor library: dimensions and the kinds of cache layers."""
