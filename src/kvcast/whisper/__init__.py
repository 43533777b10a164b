"""Whisper: recordings as sequences of windows, and segments made of their texts."""
