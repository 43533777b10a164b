"""Turns sound into log-mel windows: decoding, resampling, Whisper's features, in bounded memory.

Knows nothing of models, tokens or text.
"""
