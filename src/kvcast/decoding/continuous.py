"""Continuous batching: many drafts are written at once, each leaving when it is over.

The slot of a draft that ended goes to the next one that waits, while the others go on. Prompts are
read in chunks. Where the runtime computes rows by themselves, as in fp32, neither the number of
slots nor the length of a chunk changes what is written. Knows a `DecoderOnly` runtime, and nothing
of how a draft chooses or ends.
"""

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from kvcast.decoding.drafts import Draft
from kvcast.decoding.numerics import log_probabilities
from kvcast.decoding.prefixes import Start
from kvcast.runtimes.base import Float32


def write(start: Start, drafts: Sequence[Draft], *, rows: int, chunk: int) -> Iterator[Draft]:
    """Write drafts to their ends, yielding each whenever it has got a token.

    Args:
        start: what precedes all drafts.
        drafts: in the order in which they take slots.
        rows: most drafts at once.
        chunk: most tokens of a prompt that are read in one call.

    """
    for draft in drafts:
        if draft.is_due:  # its prompt is the prefix, to the last token
            yield from extend([draft], start.logits_v[None].copy())
    waiting = deque(draft for draft in drafts if not draft.finish_reason)
    if not waiting:
        return
    rows = min(rows, len(waiting))
    cache = start.rows(rows, int(rows < len(waiting)), max(draft.capacity for draft in waiting))
    slots: dict[int, Draft] = {}
    while waiting or slots:
        free = [row for row in range(rows) if row not in slots][: len(waiting)]
        if used := [row for row in free if cache.lengths[row] > len(start.tokens)]:
            cache = start.renew(cache, used)
        slots |= {row: waiting.popleft() for row in free}
        # A chunk of those that read, then a step of those that write: neither waits for the other.
        for in_prompt in (True, False):
            part = {row: slots[row] for row in sorted(slots) if slots[row].in_prompt == in_prompt}
            if not part:
                continue
            tokens = [draft.feed(chunk) for draft in part.values()]
            logits_rpv, cache = start.runtime.decode(tokens, cache, list(part))
            yield from extend(list(part.values()), logits_rpv[:, -1])
            slots = {row: draft for row, draft in slots.items() if not draft.finish_reason}


def extend(drafts: Sequence[Draft], logits_rv: Float32) -> Iterator[Draft]:
    """Choose a token for each draft that has read everything, and yield it.

    `logits_rv` [drafts, vocab] are of what comes next, and are overwritten.
    """
    due = [i for i, draft in enumerate(drafts) if draft.is_due]
    if not due:
        return
    if len(due) < len(drafts):
        logits_rv = logits_rv[due]
    tokens = [drafts[i].choose(logits_v) for i, logits_v in zip(due, logits_rv, strict=True)]
    logprobs_r1 = log_probabilities(logits_rv, np.array(tokens)[:, None])
    for i, token, logprob in zip(due, tokens, logprobs_r1[:, 0].tolist(), strict=True):
        drafts[i].watch.tick()
        drafts[i].push(token, logprob)
        yield drafts[i]
