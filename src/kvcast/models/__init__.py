"""Model definitions; each family has a module with what is particular to it."""
