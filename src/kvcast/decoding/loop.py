"""The loop that writes everything: requests get free rows, read, write, and leave.

The rows of a request that ended go to the next one that waits, while the others go on. Where the
runtime computes rows independently, as in fp32, what a request writes depends neither on the others
nor on the number of rows, nor on the length of a chunk. Knows neither what tokens mean nor how
they are chosen.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from kvcast.decoding.admission import Admission
from kvcast.decoding.requests import Request
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
        self._running: list[_Running] = []
        self._reading_is_next = True
        self._cache: Any = None

    @property
    def idle(self) -> bool:
        """Whether nothing waits or is under way."""
        return not (self._waiting or self._admitted or self._running)

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
        for under_way in (self._admitted, self._running):
            for one in [one for one in under_way if one.request is request]:
                under_way.remove(one)
                self._admission.release(one.held, one.slot)
                if under_way is self._running:
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
        if began := self._begin():
            return began
        reading = [one for one in self._running if one.reads]
        writing = [one for one in self._running if not one.reads]
        part = reading if reading and (self._reading_is_next or not writing) else writing
        self._reading_is_next = part is writing
        # Requests whose logits lie at the same offsets are computed in one call.
        calls: dict[tuple[int, ...], list[_Running]] = {}
        for one in part:
            calls.setdefault(one.positions(self._chunk), []).append(one)
        advanced: list[Request] = []
        for positions, several in calls.items():
            fed = sorted(pair for one in several for pair in one.feed(self._chunk))
            rows = [row for row, _ in fed]
            logits_rpv, self._cache = self._runtime.decode(
                [tokens_s for _, tokens_s in fed], self._cache, rows, positions
            )
            advanced += self._advance(several, rows, logits_rpv)
        return advanced

    def _admit(self) -> None:
        """Give those that wait what is free, in their order."""
        while self._waiting and (place := self._admission.admit(self._waiting[0])):
            self._admitted.append(_Running(self._waiting.popleft(), *place))

    def _begin(self) -> list[Request]:
        """Let rows of those that were admitted read their inputs, or adopt their prefixes.

        Returns those that got tokens: their prefix was all that they had to read.
        """
        if not self._admitted:
            return []
        new, self._admitted = self._admitted, []
        self._running += new
        if self._cache is None:
            self._cache = self._runtime.new_cache(*self._sizes)
        if inputs := self._admission.inputs_to_encode():
            encoder, sources = cast(EncoderDecoder, self._runtime), list(inputs.values())
            source = sources[0].batch(sources)
            self._cache = encoder.encode(self._cache, list(inputs), *source)
        if slots := {one.rows[0]: one.slot for one in new if one.slot is not None}:
            self._cache = self._runtime.reset(self._cache, list(slots), list(slots.values()))
        began: list[Request] = []
        for prefix in dict.fromkeys(one.request.prompt.prefix for one in new):
            if prefix is not None:
                several = [one for one in new if one.request.prompt.prefix is prefix]
                rows = [one.rows[0] for one in several]
                self._cache = self._runtime.adopt(self._cache, rows, prefix.cache, [0] * len(rows))
                logits_r1v = np.tile(prefix.logits_v, (len(rows), 1, 1))
                began += self._advance(several, rows, logits_r1v)
        return began

    def _advance(
        self, several: Sequence["_Running"], rows: Sequence[int], logits_rpv: Float32
    ) -> list[Request]:
        """Let those that have read everything choose, then move and empty rows as they say."""
        places = {row: place for place, row in enumerate(rows)}
        parents = list(range(self._sizes[0]))
        emptied: list[int] = []
        advanced: list[Request] = []
        for one in several:
            found = [places[row] for row in one.live]
            if logits_rpv.shape[1] > 1:
                one.request.probed_v = logits_rpv[found[0], 0].copy()
            if one.reads:
                continue
            adjoining = found[-1] - found[0] + 1 == len(found)
            picked = slice(found[0], found[-1] + 1) if adjoining else found
            continuations = one.request.advance(logits_rpv[picked, -1])
            for row, parent, _ in continuations:
                parents[one.rows[row]] = one.rows[parent]
            live = [one.rows[row] for row, _, _ in continuations]
            emptied += [row for row in one.live if row not in live]
            if len(live) < len(one.held):
                left = [row for row in one.held if row not in live]
                self._admission.release(left, None if live else one.slot)
            one.held = one.live = live
            one.next_l1 = np.array([[token] for _, _, token in continuations], np.int64)
            one.request.done = not live
            advanced.append(one.request)
        if parents != list(range(len(parents))):
            self._cache = self._runtime.reorder(self._cache, parents)
        if emptied:
            self._cache = self._runtime.reset(self._cache, sorted(emptied))
            self._running = [one for one in self._running if one.live]
            self._admit()
        return advanced


class _Running:
    """A request that has rows.

    Attributes:
        request: which.
        rows: of the cache, by the request's own numbers, ascending.
        held: those of them that are still its own.
        live: those that are fed; the first one alone reads the prompt.
        slot: of its encoded input; None if it has none.
        next_l1: what live rows are fed next, once the prompt is read.

    """

    def __init__(self, request: Request, rows: list[int], slot: int | None) -> None:
        self.request = request
        self.rows = self.held = rows
        self.live = rows[:1]
        self.slot = slot
        self.next_l1: Int64 = np.empty((0, 1), np.int64)
        self._unread = request.prompt.tokens

    @property
    def reads(self) -> bool:
        """Whether a part of the prompt has not been fed."""
        return len(self._unread) > 0

    def positions(self, chunk: int | None) -> tuple[int, ...]:
        """Return offsets, into what is fed next, of the logits that it needs."""
        probe = self.request.probe
        if probe is not None and self.reads:
            probe -= len(self.request.prompt.tokens) - len(self._unread)
            if 0 <= probe < len(self._unread[:chunk]):
                return probe, -1
        return (-1,)

    def feed(self, chunk: int | None) -> list[tuple[int, Int64]]:
        """Return what each live row is fed next, [S]; it counts as fed."""
        if not self.reads:
            return list(zip(self.live, self.next_l1, strict=True))
        fed_s = self._unread[:chunk]
        self._unread = self._unread[len(fed_s) :]
        return [(self.live[0], fed_s)]
