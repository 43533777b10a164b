"""Tokenizers: text to token ids and back. Knows no model and no decoding."""
