"""Tokenizers of every family, without their templates."""
