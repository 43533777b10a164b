"""Reads GGUF files, llama.cpp's: metadata, tensors in blocks of codes, tokenizers, adapters."""
