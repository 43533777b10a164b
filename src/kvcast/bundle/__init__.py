"""Bundles on disk: manifest, checksums, layout of caches."""
