"""Runtimes: each turns weights or a bundle into the same few callables (see `base`)."""
