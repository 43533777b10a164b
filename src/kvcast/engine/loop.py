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

from kvcast.engine.admission import Admission
from kvcast.engine.prefix_cache import WORTH_COPYING, HeldTokens, in_common
from kvcast.engine.requests import OVER, Continuations, Drafts, Input, Prefix, Request
from kvcast.engine.running import Batch, Running
from kvcast.runtimes.base import EncoderDecoder, Float32, Runtime
from kvcast.runtimes.exclusive import exclusive


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
        turn: int | None = None,
        held: HeldTokens | None = None,
    ) -> None:
        """Prepare; the cache is allocated when the first request begins.

        Args:
            runtime: runs the model.
            rows: most that are written at once.
            capacity: most positions of a row.
            inputs: slots for encoded inputs, one or more if the model has an encoder.
            chunk: most tokens of a prompt that are read in one call; None reads it whole.
            turn: about how many positions of prompts and inputs are computed before those that
                write have their turn; None is all that there are.
            held: what rows hold of the same number and capacity, for a decoder-only model whose
                prompts may go on from what rows were left with; None empties rows that are left.

        """
        self._runtime = runtime
        self._exclusive = exclusive(runtime)
        self._sizes = rows, capacity, inputs
        self._chunk = chunk
        self._turn = turn
        self._held = held
        self._admission = Admission(rows, inputs, held)
        self._waiting: deque[Request] = deque()
        self._admitted: list[Running] = []
        self._reading: list[Running] = []
        self._writing: list[Running] = []
        self._batch: Batch | None = None  # of those that write, until their rows change
        self._reading_is_next = True
        self._cache: Any = None

    @property
    def idle(self) -> bool:
        """Whether nothing waits or is under way."""
        return not (self._writing or self._reading or self._admitted or self._waiting)

    @property
    def waiting(self) -> int:
        """How many requests have no rows yet."""
        return len(self._waiting)

    @property
    def busy(self) -> list[int]:
        """Rows of requests, ascending."""
        under_way = (*self._admitted, *self._reading, *self._writing)
        return sorted(row for one in under_way for row in one.held)

    @property
    def lengths(self) -> list[int]:
        """How many positions each row of the cache holds."""
        if self._cache is None:
            return [0] * self._sizes[0]
        return [int(length) for length in self._cache.lengths]

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
        with self._exclusive:
            self._cancel(request)

    def _cancel(self, request: Request) -> None:
        if request in self._waiting:
            self._waiting.remove(request)
        for under_way in (self._admitted, self._reading, self._writing):
            for one in [one for one in under_way if one.request is request]:
                under_way.remove(one)
                self._batch = None
                self._admission.release(one.held, one.slot)
                if under_way is not self._admitted and self._held is None:
                    self._cache = self._runtime.reset(self._cache, one.live)
        self._admit()

    def run(self, requests: Iterable[Request]) -> Iterator[Request]:
        """Write requests to their ends, yielding each whenever it has got tokens.

        A request is taken from the iterable when there is room for all that were taken before.
        Raises what goes wrong while one of them chooses.
        """
        upcoming = iter(requests)
        while True:
            while not self._waiting and (request := next(upcoming, None)) is not None:
                self.add(request)
            if self.idle:
                return
            for request in self.step():
                if request.error is not None:
                    raise request.error
                yield request

    def step(self) -> list[Request]:
        """Take those that read a chunk further, or those that write a token further, by turns.

        Returns the requests that got tokens, or failed.
        """
        with self._exclusive:
            return self._step()

    def _step(self) -> list[Request]:
        reads = self._reading_is_next or not self._writing
        if self._admitted and (reads or self._turn is None) and (began := self._begin()):
            return began
        if self._reading and reads:
            self._reading_is_next = False
            return self._read()
        self._reading_is_next = True
        return self._write() if self._writing else []

    def _admit(self) -> None:
        """Give those that wait what is free, in their order."""
        while self._waiting and (place := self._admission.admit(self._waiting[0])):
            self._admitted.append(Running(self._waiting.popleft(), *place))

    def _begin(self) -> list[Request]:
        """Let rows of those that were admitted read their inputs, or adopt their prefixes.

        Returns those that got tokens, as their prefix was all that they had to read, and those that
        have read all that they wanted.
        """
        new = self._begun_now()
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
                batch = Batch([one for one in new if one.request.prompt.prefix is prefix])
                rows = batch.rows
                self._adopt(rows, prefix)
                began += self._advance(batch, np.tile(prefix.logits_v, (len(rows), 1)))
        read = [one for one in new if self._reads_at_once(one)]
        if read:
            self._change([(one, OVER) for one in read])
        return began + [one.request for one in read]

    def _begun_now(self) -> list[Running]:
        """Take those that are begun in this turn from those that were admitted."""
        new, positions = list[Running](), 0
        while self._admitted and (self._turn is None or positions < self._turn):
            new.append(self._admitted.pop(0))
            if (read := new[-1].request.prompt.input) is not None:
                positions += read.positions
        return new

    def _adopt(self, rows: list[int], prefix: Prefix) -> None:
        """Let rows hold a computed prefix."""
        if self._held is not None:
            for row in rows:
                self._cut(row, 0)
            self._held.feed(rows, [prefix.tokens] * len(rows))
        self._cache = self._runtime.adopt(self._cache, rows, prefix.cache, [0] * len(rows))

    def _cut(self, row: int, length: int) -> None:
        """Leave a row only its first positions; what it holds is known."""
        held = cast(HeldTokens, self._held)
        if length == held.lengths[row]:
            return
        if length:
            self._cache = self._runtime.truncate(self._cache, [row], [length])
        else:
            self._cache = self._runtime.reset(self._cache, [row])
        held.cut(row, length)

    def _go_on_from_held(self, one: Running, held: HeldTokens) -> None:
        """Let a row begin with what it, or another row, holds of its prompt."""
        [row] = one.live
        tokens_s = one.request.prompt.tokens
        shortest = [self._cache.shortest(other) for other in range(self._sizes[0])]
        match = held.match(row, tokens_s, shortest)
        if match is None or match.row != row:
            self._cut(row, 0)
        if match is None:
            return
        if match.row == row:
            self._cut(row, match.length)
        else:
            source = self._cache
            if match.length < held.lengths[match.row]:
                source = self._runtime.truncate(source, [match.row], [match.length])
            self._cache = self._runtime.adopt(self._cache, [row], source, [match.row])
            held.copy(row, match.row, match.length)
        one.skip(match.length)

    def _reads_at_once(self, one: Running) -> bool:
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
        calls: dict[tuple[int, ...], list[Running]] = {}
        for one in self._read_now():
            calls.setdefault(one.positions(self._chunk), []).append(one)
        advanced: list[Request] = []
        for positions, several in calls.items():
            batch = Batch(several)
            fed = {one.rows[0]: one.feed(self._chunk) for one in several}
            tokens = [fed[row] for row in batch.rows]
            logits_rpv, self._cache = self._runtime.decode(
                tokens, self._cache, batch.rows, positions
            )
            if self._held is not None:
                self._held.feed(batch.rows, tokens)
            if len(positions) > 1:
                for one, places in batch.members:
                    one.request.probed_v = logits_rpv[places][0, 0].copy()
            advanced += self._advance(batch, logits_rpv[:, -1])
        return advanced

    def _read_now(self) -> list[Running]:
        """Return those that read in this turn, the first come first."""
        now, positions = list[Running](), 0
        for one in self._reading:
            if self._turn is not None and positions >= self._turn:
                break
            if self._held is not None and one.fresh:
                if self._finds_more_later(one, now):
                    continue
                self._go_on_from_held(one, self._held)
            now.append(one)
            positions += one.chunk(self._chunk)
        return now

    def _finds_more_later(self, one: Running, now: Sequence[Running]) -> bool:
        """Tell whether one of those that read now computes what this one could go on from."""
        held = cast(HeldTokens, self._held)
        tokens_s = one.request.prompt.tokens
        shared = max((in_common(tokens_s, other.request.prompt.tokens) for other in now), default=0)
        shared = min(shared, len(tokens_s) - 1)
        return shared >= max(held.common(tokens_s)) + WORTH_COPYING

    def _write(self) -> list[Request]:
        """Feed those that write what they chose; let them choose again."""
        if self._batch is None:
            self._batch = Batch(self._writing)
        batch = self._batch
        for one, places in batch.members:
            batch.tokens_r1[places, 0] = one.next
        alone = batch.members[0][0]
        if len(batch.rows) == 1 and alone.request.drafts is not None:
            return self._write_ahead(alone, alone.request.drafts)
        logits_rpv, self._cache = self._runtime.decode(batch.tokens_r1, self._cache, batch.rows)
        if self._held is not None:
            self._held.step(batch.rows, batch.tokens_r1)
        return self._advance(batch, logits_rpv[:, -1])

    def _write_ahead(self, one: Running, drafts: Drafts) -> list[Request]:
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
        if self._held is not None:
            self._held.feed([row], [fed_s[:kept]])
        if kept < len(fed_s):
            self._cache = self._runtime.truncate(self._cache, [row], [held + kept])
        if chosen.rows != one.numbers:
            self._change([(one, chosen)])
        return [one.request]

    def _advance(self, batch: "Batch", logits_rv: Float32) -> list[Request]:
        """Let those that have read everything choose; move and empty rows if they say so."""
        advanced: list[Request] = []
        changes: list[tuple[Running, Continuations]] = []
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

    def _change(self, changes: Sequence[tuple[Running, Continuations]]) -> None:
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
            if self._held is not None:
                self._held.reorder(parents)
        if emptied:
            if self._held is None:
                self._cache = self._runtime.reset(self._cache, sorted(emptied))
            self._admit()

    def _keep(self, one: Running, numbers: list[int]) -> list[int]:
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
