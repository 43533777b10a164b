"""Reads decoder-only models: Hugging Face's model types, and Mistral's own layout."""
