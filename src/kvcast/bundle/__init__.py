"""Bundles on disk: manifest, checksums, layout of caches. Knows no torch and no runtime."""
