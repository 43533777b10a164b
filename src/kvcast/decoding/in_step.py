"""Drafts that are written in step, as an encoder-decoder model's rows need it.

All begin together and grow by a token at a time until the last of them is over. Knows no runtime,
and nothing of how a draft chooses or ends.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from kvcast.decoding.continuous import extend
from kvcast.decoding.drafts import Draft
from kvcast.decoding.rows import Beginning


def write_in_step(beginning: Beginning, drafts: Sequence[Draft]) -> Iterator[Draft]:
    """Write drafts to their ends, yielding each whenever it has got a token.

    Args:
        beginning: what was read of each.
        drafts: as many for each of its prompts, those of one prompt adjacent; each has read all
            that precedes it.

    """
    copies = len(drafts) // len(beginning.preceding)
    yield from extend(drafts, np.repeat(beginning.logits_bv, copies, axis=0))
    live = [row for row, draft in enumerate(drafts) if not draft.finish_reason]
    if not live:
        return
    rows = beginning.rows(copies)
    while live:
        tokens_r = np.concatenate([drafts[row].feed(1) for row in live])
        yield from extend([drafts[row] for row in live], rows.step(live, tokens_r))
        live = [row for row in live if not drafts[row].finish_reason]
