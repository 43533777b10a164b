"""Reads encoder-decoder models of text, and UniLMs: BART, T5, T5Gemma, bert4keras, Bergamot."""
