"""Sound in, log-mel windows out: decoding, resampling and Whisper's features, in bounded memory.

Knows nothing of models, tokens or text.
"""
