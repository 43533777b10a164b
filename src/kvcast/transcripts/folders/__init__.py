"""A folder of recordings becomes a folder of transcripts, and a journal records the finished ones.

Finds recordings, names their transcripts, transcribes several at once, saves each, and records it.
Prints nothing, and knows neither formats nor how a recording is decoded.
"""
