"""Transformer decoders with a key-value cache, on several runtimes.

The public surface is what this module names in ``__all__``; everything else may change.
"""

__version__ = "0.1.0"
