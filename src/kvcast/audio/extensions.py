"""Extensions of the recordings that `kvcast.audio.decode` opens.

A file is opened by its content. Names only tell the recordings in a folder from everything else
that lies there, and formats that have no header. Knows no library.
"""

LIBSNDFILE = (
    *("aif", "aifc", "aiff", "au", "avr", "caf", "flac", "htk", "iff", "mp2", "mp3", "mpa", "mpga"),
    *("nist", "oga", "ogg", "opus", "paf", "pvf", "rf64", "sds", "sf", "snd", "sph", "svx", "voc"),
    *("w64", "wav", "wave", "wve", "xi"),
)

PYAV = (
    *("3g2", "3ga", "3gp", "3gpp", "aa3", "aac", "ac3", "adts", "adx", "aea", "amr", "ape", "asf"),
    *("avi", "awb", "bonk", "c2", "dav", "dif", "divx", "dsf", "dss", "dts", "dtshd", "dv", "eac3"),
    *("ec3", "f4a", "f4b", "f4v", "flv", "g722", "gsm", "gxf", "ircam", "isma", "ismv", "ivr"),
    *("kux", "latm", "lc3", "loas", "m2a", "m2t", "m2ts", "m4a", "m4b", "m4r", "m4v", "mk3d"),
    *("mka", "mkv", "mlp", "mmf", "mov", "mp4", "mpc", "mpeg", "mpg", "mts", "mxf", "nsv", "nut"),
    *("ogv", "ogx", "oma", "omg", "osq", "psp", "qcp", "qt", "ra", "rka", "rm", "rmvb", "rso"),
    *("sbc", "shn", "sln", "sox", "spx", "tak", "thd", "trp", "ts", "tta", "ty", "vob", "vqf"),
    *("wa", "weba", "webm", "wma", "wmv", "wsd", "wtv", "wv", "xwma"),
)
"""Also without PyAV: the reader's message then names the extra to install."""

EXTENSIONS = frozenset((*LIBSNDFILE, *PYAV))
"""In lower case, without the dot."""

HEADERLESS = {"g722": "g722", "gsm": "gsm", "rso": "rso", "sbc": "sbc", "sln": "sln"}
"""Formats that only a name tells; FFmpeg's name by extension."""
