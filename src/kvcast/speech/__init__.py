"""Recordings in, segments of text out: what all models that transcribe share."""
