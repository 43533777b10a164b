"""`kvcast inspect`: draws masks and caches and counts costs, from a model's dimensions alone."""
