"""`kvcast bench transcribe`: Whisper beside other programs, on the same audio and weights."""
