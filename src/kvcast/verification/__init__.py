"""Whether a model with a cache computes what it computes without one."""
