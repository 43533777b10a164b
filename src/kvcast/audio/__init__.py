"""Turns sound into log-mel windows: decoding, resampling, Whisper's features, in bounded memory."""
