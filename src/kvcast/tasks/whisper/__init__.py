"""The parts that a transcription of a long recording is made of, each usable alone."""
