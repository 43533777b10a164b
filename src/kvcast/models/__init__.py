"""Model definitions; each family has a module of its own."""
