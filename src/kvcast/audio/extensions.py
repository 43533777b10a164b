"""Extensions of the recordings that `kvcast.audio.decode` opens.

A file is opened by its content. Names only tell the recordings in a folder from everything else
that lies there. Knows no library.
"""

LIBSNDFILE = (
    *("aif", "aifc", "aiff", "au", "caf", "flac", "mp2", "mp3", "oga", "ogg", "opus"),
    *("rf64", "snd", "sph", "voc", "w64", "wav", "wave"),
)

PYAV = (
    *("3gp", "aac", "ac3", "amr", "asf", "avi", "flv", "m4a", "m4b", "m4v", "mka", "mkv", "mov"),
    *("mp4", "spx", "weba", "webm", "wma", "wmv"),
)
"""Also without PyAV: the reader's message then names the extra to install."""

EXTENSIONS = frozenset((*LIBSNDFILE, *PYAV))
"""In lower case, without the dot."""
