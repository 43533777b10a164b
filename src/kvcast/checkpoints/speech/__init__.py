"""Reads speech models: Whisper, Canary, Parakeet, Moonshine, and decoders that take audio."""
