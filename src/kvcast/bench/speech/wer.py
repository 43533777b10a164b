"""Word error, with a simple normalisation that is the same for everybody.

Lower case; the titles Mr., Mrs. and Dr. spelled out as they are spoken; apostrophes inside words
dropped, all other marks become spaces. Numbers stay as they are written.
"""

import re

from kvcast.errors import UsageError

_SPOKEN = {"mr": "mister", "mrs": "missus", "dr": "doctor"}


def normalise(text: str) -> str:
    """Return the words of `text`, one space between."""
    joined = re.sub(r"(?<=\w)['\u2019](?=\w)", "", text.lower())
    words = re.sub(r"[^\w]|_", " ", joined).split()
    return " ".join(_SPOKEN.get(word, word) for word in words)


def word_error(reference: str, hypothesis: str) -> float:
    """Return substitutions, deletions and insertions over the words of the reference.

    Raises UsageError if the reference has no words.
    """
    import jiwer

    expected = normalise(reference)
    if not expected:
        raise UsageError("the reference holds no words")
    return float(jiwer.wer(expected, normalise(hypothesis)))
