"""The loop that writes everything: requests get free rows, read, write, and leave.

The rows of a request that ended go to the next one that waits, while the others go on. Where the
runtime computes rows independently, as in fp32, what a request writes depends neither on the others
nor on the number of rows, nor on the length of a chunk. Knows neither what tokens mean nor how
they are chosen.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from kvcast.decoding.admission import Admission
from kvcast.decoding.requests import OVER, Continuations, Drafts, Input, Request
from kvcast.runtimes.base import EncoderDecoder, Float32, Int64, Runtime


class Loop:
    """Requests under way over one cache."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        rows: int,
        capacity: int,
        inputs: int = 0,
        chunk: int | None = None,
    ) -> None:
        """Prepare; the cache is allocated when the first request begins.

        Args:
            runtime: runs the model.
            rows: most that are written at once.
            capacity: most positions of a row.
            inputs: slots for encoded inputs, one or more if the model has an encoder.
            chunk: most tokens of a prompt that are read in one call; None reads it whole.

        """
        self._runtime = runtime
        self._sizes = rows, capacity, inputs
        self._chunk = chunk
        self._admission = Admission(rows, inputs)
        self._waiting: deque[Request] = deque()
        self._admitted: list[_Running] = []
        self._reading: list[_Running] = []
        self._writing: list[_Running] = []
        self._batch: _Batch | None = None  # of those that write, until their rows change
        self._reading_is_next = True
        self._cache: Any = None

    @property
    def idle(self) -> bool:
        """Whether nothing waits or is under way."""
        return not (self._writing or self._reading or self._admitted or self._waiting)

    def add(self, request: Request) -> None:
        """Let a request wait for its turn; it begins with the next step if there is room."""
        rows, capacity, _ = self._sizes
        if request.width > rows or request.capacity > capacity:
            raise ValueError(
                f"a request for {request.width} rows of {request.capacity} positions does not fit "
                f"into a cache of {rows} rows of {capacity}"
            )
        self._waiting.append(request)
        self._admit()

    def cancel(self, request: Request) -> None:
        """End a request; nothing happens if it is over or unknown."""
        if request in self._waiting:
            self._waiting.remove(request)
        for under_way in (self._admitted, self._reading, self._writing):
            for one in [one for one in under_way if one.request is request]:
                under_way.remove(one)
                self._batch = None
                self._admission.release(one.held, one.slot)
                if under_way is not self._admitted:
                    self._cache = self._runtime.reset(self._cache, one.live)
        self._admit()

    def run(self, requests: Iterable[Request]) -> Iterator[Request]:
        """Write requests to their ends, yielding each whenever it has got tokens.

        A request is taken from the iterable when there is room for all that were taken before.
        """
        upcoming = iter(requests)
        while True:
            while not self._waiting and (request := next(upcoming, None)) is not None:
                self.add(request)
            if self.idle:
                return
            yield from self.step()

    def step(self) -> list[Request]:
        """Take those that read a chunk further, or those that write a token further, by turns.

        Returns the requests that got tokens.
        """
        if self._admitted and (began := self._begin()):
            return began
        if self._reading and (self._reading_is_next or not self._writing):
            self._reading_is_next = False
            return self._read()
        self._reading_is_next = True
        return self._write() if self._writing else []

    def _admit(self) -> None:
        """Give those that wait what is free, in their order."""
        while self._waiting and (place := self._admission.admit(self._waiting[0])):
            self._admitted.append(_Running(self._waiting.popleft(), *place))

    def _begin(self) -> list[Request]:
        """Let rows of those that were admitted read their inputs, or adopt their prefixes.

        Returns those that got tokens, as their prefix was all that they had to read, and those that
        have read all that they wanted.
        """
        new, self._admitted = self._admitted, []
        self._reading += new
        if self._cache is None:
            self._cache = self._runtime.new_cache(*self._sizes)
        if inputs := self._admission.inputs_to_encode():
            self._encode(inputs)
        if slots := {one.rows[0]: one.slot for one in new if one.slot is not None}:
            self._cache = self._runtime.reset(self._cache, list(slots), list(slots.values()))
        began: list[Request] = []
        for prefix in dict.fromkeys(one.request.prompt.prefix for one in new):
            if prefix is not None:
                batch = _Batch([one for one in new if one.request.prompt.prefix is prefix])
                rows = batch.rows
                self._cache = self._runtime.adopt(self._cache, rows, prefix.cache, [0] * len(rows))
                began += self._advance(batch, np.tile(prefix.logits_v, (len(rows), 1)))
        read = [one for one in new if self._reads_at_once(one)]
        if read:
            self._change([(one, OVER) for one in read])
        return began + [one.request for one in read]

    def _reads_at_once(self, one: "_Running") -> bool:
        return one.request.read_at_once(self._runtime, self._cache, one.rows[0])

    def _encode(self, inputs: Mapping[int, Input]) -> None:
        """Encode inputs into their slots."""
        encoder, slots = cast(EncoderDecoder, self._runtime), list(inputs)
        most = inputs[slots[0]].most_together or len(slots)
        for first in range(0, len(slots), most):
            several = slots[first : first + most]
            source = inputs[slots[0]].batch([inputs[slot] for slot in several])
            self._cache = encoder.encode(self._cache, several, *source)

    def _read(self) -> list[Request]:
        """Feed a chunk to each of those that read; let those that have read everything choose."""
        # Requests whose logits lie at the same offsets are computed in one call.
        calls: dict[tuple[int, ...], list[_Running]] = {}
        for one in self._reading:
            calls.setdefault(one.positions(self._chunk), []).append(one)
        advanced: list[Request] = []
        for positions, several in calls.items():
            batch = _Batch(several)
            fed = {one.rows[0]: one.feed(self._chunk) for one in several}
            tokens = [fed[row] for row in batch.rows]
            logits_rpv, self._cache = self._runtime.decode(
                tokens, self._cache, batch.rows, positions
            )
            if len(positions) > 1:
                for one, places in batch.members:
                    one.request.probed_v = logits_rpv[places][0, 0].copy()
            advanced += self._advance(batch, logits_rpv[:, -1])
        return advanced

    def _write(self) -> list[Request]:
        """Feed those that write what they chose; let them choose again."""
        if self._batch is None:
            self._batch = _Batch(self._writing)
        batch = self._batch
        for one, places in batch.members:
            batch.tokens_r1[places, 0] = one.next
        alone = batch.members[0][0]
        if len(batch.rows) == 1 and alone.request.drafts is not None:
            return self._write_ahead(alone, alone.request.drafts)
        logits_rpv, self._cache = self._runtime.decode(batch.tokens_r1, self._cache, batch.rows)
        return self._advance(batch, logits_rpv[:, -1])

    def _write_ahead(self, one: "_Running", drafts: Drafts) -> list[Request]:
        """Feed one row what it chose and what it may choose next; keep what it does choose.

        With several rows a call is about as expensive for each of them as for drafted tokens, and
        rows are never wrong: so they go on without drafts.
        """
        [row] = one.live
        held = int(self._cache.lengths[row])
        room = self._cache.revocable(row, 1, one.request.capacity - held - 1)
        drafted = list(drafts.propose(room)) if room > 0 else []
        fed_s = np.array([*one.next, *drafted], np.int64)
        began = time.perf_counter()
        logits_rpv, self._cache = self._runtime.decode(
            [fed_s], self._cache, [row], range(len(fed_s))
        )
        seconds = time.perf_counter() - began
        for kept, draft in enumerate([*drafted, None], start=1):
            chosen = one.choose(logits_rpv[:, kept - 1])
            if chosen.tokens != [draft]:
                break
        drafts.called(len(fed_s), kept, seconds)
        if kept < len(fed_s):
            self._cache = self._runtime.truncate(self._cache, [row], [held + kept])
        if chosen.rows != one.numbers:
            self._change([(one, chosen)])
        return [one.request]

    def _advance(self, batch: "_Batch", logits_rv: Float32) -> list[Request]:
        """Let those that have read everything choose; move and empty rows if they say so."""
        advanced: list[Request] = []
        changes: list[tuple[_Running, Continuations]] = []
        for one, places in batch.members:
            if one.reads:
                continue
            chosen = one.choose(logits_rv[places])
            if not chosen.rows == chosen.parents == one.numbers:
                changes.append((one, chosen))
            advanced.append(one.request)
        if changes:
            self._change(changes)
        return advanced

    def _change(self, changes: Sequence[tuple["_Running", Continuations]]) -> None:
        """Let rows continue others, or end."""
        parents = list(range(self._sizes[0]))
        emptied: list[int] = []
        for one, chosen in changes:
            for row, parent in zip(chosen.rows, chosen.parents, strict=True):
                parents[one.rows[row]] = one.rows[parent]
            if chosen.rows != one.numbers:
                emptied += self._keep(one, chosen.rows)
        if parents != list(range(len(parents))):
            self._cache = self._runtime.reorder(self._cache, parents)
        if emptied:
            self._cache = self._runtime.reset(self._cache, sorted(emptied))
            self._admit()

    def _keep(self, one: "_Running", numbers: list[int]) -> list[int]:
        """Leave a request only these of its rows; return those that were fed and are not now."""
        live = [one.rows[number] for number in numbers]
        emptied = [row for row in one.live if row not in live]
        if len(live) < len(one.held):
            left = [row for row in one.held if row not in live]
            self._admission.release(left, None if live else one.slot)
        if one in self._reading:
            self._reading.remove(one)
            self._writing.append(one)
        if not live:
            self._writing.remove(one)
        one.held = one.live = live
        one.numbers = numbers
        one.request.done = not live
        self._batch = None
        return emptied


class _Running:
    """A request that has rows.

    Attributes:
        request: which.
        rows: of the cache, by the request's own numbers, ascending.
        held: those of them that are still its own.
        live: those that are fed; the first one alone reads the prompt.
        numbers: of live rows; None before it has chosen for the first time.
        next: what live rows are fed next, once the prompt is read.
        slot: of its encoded input; None if it has none.

    """

    def __init__(self, request: Request, rows: list[int], slot: int | None) -> None:
        self.request = request
        self.rows = self.held = rows
        self.live = rows[:1]
        self.numbers: list[int] | None = None
        self.next: list[int] = []
        self.slot = slot
        self._unread = request.prompt.tokens

    @property
    def reads(self) -> bool:
        """Whether a part of the prompt has not been fed."""
        return len(self._unread) > 0

    def choose(self, logits_rv: Float32) -> Continuations:
        """Let the request choose what its rows are fed next."""
        chosen = self.request.advance(logits_rv)
        self.next = chosen.tokens
        if self.request.drafts is not None:
            for token in chosen.tokens:
                self.request.drafts.chose(token)
        return chosen

    def positions(self, chunk: int | None) -> tuple[int, ...]:
        """Return offsets, into what is fed next, of the logits that it needs."""
        probe = self.request.probe
        if probe is not None:
            probe -= len(self.request.prompt.tokens) - len(self._unread)
            if 0 <= probe < len(self._unread[:chunk]):
                return probe, -1
        return (-1,)

    def feed(self, chunk: int | None) -> Int64:
        """Return what is read next, [S]; it counts as fed."""
        fed_s = self._unread[:chunk]
        self._unread = self._unread[len(fed_s) :]
        return fed_s


class _Batch:
    """Requests whose rows share calls.

    Attributes:
        rows: those that are fed, ascending.
        members: the requests, each with the places of its rows among these.
        tokens_r1: room for what the rows are fed in a step.

    """

    def __init__(self, requests: Sequence[_Running]) -> None:
        self.rows = sorted(row for one in requests for row in one.live)
        place_of = {row: place for place, row in enumerate(self.rows)}
        self.members = [(one, _places([place_of[row] for row in one.live])) for one in requests]
        self.tokens_r1: Int64 = np.empty((len(self.rows), 1), np.int64)


def _places(ascending: list[int]) -> slice | list[int]:
    """Return a slice, which indexes without a copy, if the places adjoin."""
    first, last = ascending[0], ascending[-1]
    return slice(first, last + 1) if last - first + 1 == len(ascending) else ascending
