"""T5's sentinels: <extra_id_0> and so on mark gaps in a source, and their contents in a target.

Users write them in sources on purpose, so they are recognised there, unlike tokens that start, end
or pad a text.
"""

import re

SENTINEL = re.compile(r"<extra_id_(\d{1,4})>")


def sentinel(number: int) -> str:
    return f"<extra_id_{number}>"
