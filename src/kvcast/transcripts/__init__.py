"""Timed text of any model: segments, subtitles, files, and folders of transcripts."""
