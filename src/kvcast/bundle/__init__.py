"""The bundle on disk: manifest, checksums, cache specification. No torch, no runtime."""
