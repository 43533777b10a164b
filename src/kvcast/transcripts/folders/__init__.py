"""A folder of recordings becomes one of transcripts, and a journal records the finished ones."""
