"""Admission: gives a request rows of a cache, and a slot for its encoded input.

A slot that no request reads keeps its input until another one needs the slot, so a later
request for the same input finds it encoded. Knows neither runtimes nor texts.
"""

from collections.abc import Sequence

from kvcast.engine.prefix_cache import PrefixCache
from kvcast.engine.requests import Input, Request
from kvcast.runtimes.base import Int64


class Admission:
    """Free rows and slots."""

    def __init__(self, rows: int, slots: int, prefixes: PrefixCache | None = None) -> None:
        self._prefixes = prefixes
        self._free = list(range(rows))  # the longest free first
        self._unread = list(range(slots))  # slots that no request reads, the longest unread first
        self._readers = [0] * slots
        self._inputs: dict[int, Input] = {}
        self._encoded: set[int] = set()

    @property
    def has_free_rows(self) -> bool:
        """Whether there is a row without a request."""
        return bool(self._free)

    def admit(self, request: Request, sequence: Int64) -> tuple[list[int], int | None] | None:
        """Give a request its rows, ascending, and its slot; None if there is no room.

        `sequence` is what its first row will hold before it chooses.
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
        """Take back rows of a request, and its slot with the last of them."""
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
