"""`kvcast bench generate` for text-to-text models: targets of sources, beside other programs."""
