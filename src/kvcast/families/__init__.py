"""Model families: dimensions, caches and all other differences."""
