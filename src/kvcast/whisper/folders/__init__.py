"""A folder of recordings becomes a folder of transcripts, and a journal says what is done.

Finds recordings, names their transcripts, transcribes several at once, saves each, and records it.
Prints nothing, and knows neither formats nor how a recording is decoded.
"""
