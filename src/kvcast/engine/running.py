"""Running requests: their rows and input slots, their next tokens, and the rows that share calls.

An input stays in its slot until another one needs the slot, so it may be found encoded.
"""

from collections.abc import Sequence

import numpy as np

from kvcast.engine.callers import Caller
from kvcast.engine.prefix_cache import PrefixCache
from kvcast.engine.requests import OVER, Continuations, Input, Request
from kvcast.runtimes.base import Float32, Int64


class Admission:
    def __init__(self, rows: int, slots: int, prefixes: PrefixCache | None = None) -> None:
        self._prefixes = prefixes
        self._free = list(range(rows))  # the least recently used first
        self._unread = list(range(slots))  # slots that no request reads, the longest unread first
        self._readers = [0] * slots
        self._inputs: dict[int, Input] = {}
        self._encoded: set[int] = set()

    @property
    def has_free_rows(self) -> bool:
        return bool(self._free)

    def admit(self, request: Request, sequence: Int64) -> tuple[list[int], int | None] | None:
        """Give a request, with the first tokens `sequence`, its rows, ascending, and slot.

        None if there is no room.
        """
        if len(self._free) < request.width:
            return None
        slot = None
        if request.prompt.input is not None:
            slot = self._slot_for(request.prompt.input)
            if slot is None:
                return None
            self._readers[slot] += 1
            if slot in self._unread:
                self._unread.remove(slot)
        rows = self._rows_for(request.width, sequence)
        self._free = [row for row in self._free if row not in rows]
        return rows, slot

    def release(self, rows: Sequence[int], slot: int | None) -> None:
        self._free += rows
        if slot is not None:
            self._readers[slot] -= 1
            if not self._readers[slot]:
                self._unread.append(slot)

    def inputs_to_encode(self) -> dict[int, Input]:
        """Return the inputs yet to be encoded, by slot; they count as encoded from now on."""
        slots = [slot for slot, n in enumerate(self._readers) if n and slot not in self._encoded]
        self._encoded.update(slots)
        return {slot: self._inputs[slot] for slot in slots}

    def _rows_for(self, width: int, sequence: Int64) -> list[int]:
        if self._prefixes is None:
            return sorted(self._free)[:width]
        first = self._prefixes.row_for(sequence, self._free)
        others = [row for row in self._free if row != first][: width - 1]
        return sorted([first, *others])

    def _slot_for(self, wanted: Input) -> int | None:
        for slot, held in self._inputs.items():
            if held is wanted:
                return slot
        if not self._unread:
            return None
        slot = self._unread[0]
        self._inputs[slot] = wanted
        self._encoded.discard(slot)
        return slot


class Running:
    """A request that has rows.

    Attributes:
        live: rows that are fed; only the first during prefill.
        numbers: indices of live rows; None before its first choice.
        next: tokens that live rows are fed next, after prefill; after a rollback of drafts, the
            accepted tokens past the row's length come first.
        border: a length at which a chunk ends, since other prompts may continue there; 0: none.

    """

    def __init__(self, request: Request, caller: Caller) -> None:
        self.request = request
        self.caller = caller
        self.rows: list[int] = []
        self.owned = self.live = self.rows
        self.live_indices: list[int] | None = None
        self.next: list[int] = []
        self.slot: int | None = None
        self.border = 0
        self._held: Int64 | None = None
        self._unread = request.prompt.tokens

    def place(self, rows: list[int], slot: int | None) -> None:
        self.rows = self.owned = rows
        self.live = rows[:1]
        self.slot = slot

    def pause(self, held_s: Int64, next_s: Int64) -> None:
        """Take its only row; its tokens, in the prefix cache's form, will be prefilled again."""
        if self.live_indices is not None:
            self._held = np.concatenate([held_s, next_s])
        self._unread = self.sequence
        self.live_indices = None
        self.rows = self.owned = self.live = []

    @property
    def sequence(self) -> Int64:
        """The tokens to prefill before its next choice, in the prefix cache's form."""
        return self.request.prompt.sequence if self._held is None else self._held

    @property
    def reads(self) -> bool:
        return len(self._unread) > 0

    @property
    def fresh(self) -> bool:
        return self.request.prompt.prefix is None and len(self._unread) == len(self.sequence)

    def skip(self, count: int) -> None:
        self._unread = self._unread[count:]
        if self._held is None:
            self.request.reused = count

    def unread(self) -> int:
        return len(self._unread)

    @property
    def repeats(self) -> bool:
        return bool(self._unread[0] < 0)

    def chunk(self, most: int | None) -> int:
        """Return the number of tokens fed next: of a prompt, or of earlier decode steps."""
        before = self.border - (len(self.sequence) - len(self._unread))
        next_s = self._unread[:most] if before <= 0 else self._unread[:most][:before]
        other_s = (next_s < 0) != self.repeats
        return int(other_s.argmax()) if other_s.any() else len(next_s)

    def choose(self, logits_rv: Float32) -> Continuations:
        """Choose the next tokens of its rows; an error ends only this request."""
        try:
            chosen = self.request.advance(logits_rv)
        except Exception as error:
            self.request.error = error
            return OVER
        self.next = chosen.tokens
        if self.request.drafts is not None:
            for token in chosen.tokens:
                self.request.drafts.chose(token)
        return chosen

    def positions(self, chunk: int | None) -> tuple[int, ...]:
        """Return offsets, into the tokens fed next, of the logits that it needs."""
        probe = self.request.probe
        if probe is not None:
            probe -= len(self.request.prompt.tokens) - len(self._unread)
            if 0 <= probe < self.chunk(chunk):
                return probe, -1
        return (-1,)

    def feed(self, chunk: int | None) -> Int64:
        """Return the next tokens [S] in the prefix cache's form, and count them as fed."""
        fed_s = self._unread[: self.chunk(chunk)]
        self._unread = self._unread[len(fed_s) :]
        return fed_s


class Batch:
    def __init__(self, requests: Sequence[Running]) -> None:
        self.rows = sorted(row for each in requests for row in each.live)
        place_of = {row: place for place, row in enumerate(self.rows)}
        self.members = [(each, _places([place_of[row] for row in each.live])) for each in requests]
        self.tokens_r1: Int64 = np.empty((len(self.rows), 1), np.int64)


def _places(ascending: list[int]) -> slice | list[int]:
    first, last = ascending[0], ascending[-1]
    return slice(first, last + 1) if last - first + 1 == len(ascending) else ascending
