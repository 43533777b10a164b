"""Recordings in, segments of text out: what every model that transcribes shares.

And models beside Whisper, which hear chunks.
"""
