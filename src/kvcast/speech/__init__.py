"""Recordings in, segments of text out, for every model that transcribes."""
