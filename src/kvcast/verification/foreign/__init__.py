"""Decoders that other tools exported: whether they are right, and what a step of theirs costs."""
