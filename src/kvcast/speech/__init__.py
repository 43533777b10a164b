"""Speech recognition shared by all models: recordings in, segments of text out."""
