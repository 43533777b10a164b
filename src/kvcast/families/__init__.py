"""Model families: dimensions, caches and everything else that tells them apart."""
