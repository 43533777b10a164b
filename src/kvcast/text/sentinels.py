"""Sentinels of T5: <extra_id_0> and so on mark gaps in a source and what fills them in a target.

Whoever writes one in a source means it, so they are read there, unlike tokens that begin, end or
pad a text. Knows no vocabulary.
"""

import re

SENTINEL = re.compile(r"<extra_id_(\d{1,4})>")


def sentinel(number: int) -> str:
    """Return how a sentinel is written."""
    return f"<extra_id_{number}>"
