"""What users ask for: load a model, export it, transcribe, write transcripts."""
