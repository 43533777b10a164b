"""The scheduler: continuous batching with chunked prefill over one cache.

It pulls: waiting requests stay with their callers. A free row goes to the caller with the lowest
priority number; among equals, by fair share of clients and callers (`kvcast.engine.fair_share`),
then to the longest waiting one. If no row is free, a caller with more rows is preempted: its text
resumes later from its tokens. So a caller of many requests cannot starve another. A request that
needs more rows than are free blocks admission at its turn, until it fits.

Where the runtime computes rows independently, as in fp32, the tokens of a request depend neither on
other requests nor on the number of rows or the length of a chunk.

One class, though long: each step reads and changes the same queues, rows and cache.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import RLock
from typing import Any, TypeVar, cast

import numpy as np

from kvcast.engine.callers import Caller, Policy, PolicyList, RequestList
from kvcast.engine.fair_share import FairShare, Pace, in_rounds
from kvcast.engine.prefix_cache import WORTH_COPYING, PrefixCache, in_common, plain
from kvcast.engine.requests import OVER, Continuations, Drafts, Input, Prefix, Request
from kvcast.engine.running import Admission, Batch, Running
from kvcast.runtimes.base import EncoderDecoder, Float32, Runtime, exclusive
from kvcast.runtimes.trial import Trial, roll_back

Result = TypeVar("Result")


class Scheduler:
    """Runs the requests of its callers over one cache; several threads may use it."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        rows: int,
        capacity: int,
        inputs: int = 0,
        requests: int | None = None,
        chunk: int | None = None,
        turn: int | None = None,
        prefixes: PrefixCache | None = None,
        cache_bytes: int = 0,
    ) -> None:
        """Prepare; the cache is allocated when the first request begins.

        `capacity` is the most positions of a row; `inputs` the slots for encoded inputs, one or
        more with an encoder; `requests` the most that run at once (None: as rows allow); `chunk`
        the most prompt tokens of a call (None: all); `turn` about how many positions of prompts and
        inputs are computed between decode steps (None: all). `prefixes`, for decoder-only models,
        has as many rows and positions; without it free rows are emptied.
        """
        self.rows, self.capacity, self.cache_bytes = rows, capacity, cache_bytes
        self._runtime = runtime
        self._exclusive = exclusive(runtime)
        self._lock = RLock()
        self._inputs = inputs
        self._most = requests or rows
        self._chunk = chunk
        self._turn = turn
        self._prefixes = prefixes
        self._admission = Admission(rows, inputs, prefixes)
        self._callers: dict[Caller, None] = {}  # the one that has waited longest first
        self._pulled: Running | None = None  # stops admission until it fits
        self._paused: list[Running] = []  # that gave their rows up, the longest ago first
        self._pace = Pace()
        self._reads_shortest = False
        self._admitted: list[Running] = []
        self._prefilling: list[Running] = []
        self._decoding: list[Running] = []
        self._batch: Batch | None = None  # the decoding ones' plan, until their rows change
        self._prefill_is_next = True
        self._cache: Any = None

    @property
    def idle(self) -> bool:
        return not self._callers

    @property
    def callers(self) -> list[Caller]:
        return list(self._callers)

    @property
    def busy(self) -> list[int]:
        running = (*self._admitted, *self._prefilling, *self._decoding)
        return sorted(row for each in running for row in each.owned)

    @property
    def lengths(self) -> list[int]:
        if self._cache is None:
            return [0] * self.rows
        return [int(length) for length in self._cache.lengths]

    def add(self, caller: Caller) -> None:
        with self._lock:
            self._callers[caller] = None

    def remove(self, caller: Caller) -> None:
        """End a caller's requests, and ask it for no more; has no effect if it is unknown."""
        with self._lock:
            self._callers.pop(caller, None)
            if self._pulled is not None and self._pulled.caller is caller:
                self._pulled = None
            self._paused = [each for each in self._paused if each.caller is not caller]
            for phase in (self._admitted, self._prefilling, self._decoding):
                for running in [each for each in phase if each.caller is caller]:
                    phase.remove(running)
                    self._drop(running, began=phase is not self._admitted)

    def run(self, requests: Iterable[Request]) -> Iterator[Request]:
        """Run requests, yielding each whenever it got tokens; raises the error of a failed one."""
        caller = RequestList(requests)
        self.add(caller)
        try:
            while not caller.over:
                self.step()
                yield from caller.advanced
                caller.advanced.clear()
        finally:
            self.remove(caller)
        if caller.error is not None:
            raise caller.error

    def results(self, *policies: Policy[Result]) -> list[Result]:
        caller = PolicyList(policies)
        self.add(caller)
        try:
            while not caller.over:
                self.step()
        finally:
            self.remove(caller)
        if caller.error is not None:
            raise caller.error
        return [caller.results[policy] for policy in policies]

    def step(self) -> list[Caller]:
        """Prefill the next chunks or decode one token per row, alternating.

        Returns the callers that took results, or are over.
        """
        with self._lock:
            news = self._admit()
            with self._exclusive:
                prefills = self._prefill_is_next or not self._decoding
                advanced: list[Running] = []
                if self._admitted and (prefills or self._turn is None):
                    advanced = self._begin()
                if not advanced and self._prefilling and prefills:
                    self._prefill_is_next = False
                    advanced = self._prefill()
                elif not advanced:
                    self._prefill_is_next = True
                    advanced = self._decode() if self._decoding else []
            for running in advanced:
                if running.caller in self._callers:  # and was not removed by another
                    news[running.caller] = None
                    self._deliver(running)
            return list(news)

    def _deliver(self, running: Running) -> None:
        caller = running.caller
        try:
            caller.take(running.request)
        except Exception as error:
            caller.fail(error)
        if caller.over:
            self.remove(caller)

    def _admit(self) -> dict[Caller, None]:
        over: dict[Caller, None] = {}
        while self._callers and (pulled := self._pulled or self._pull(over)) is not None:
            place = self._admission.admit(pulled.request, pulled.sequence)
            if place is None:
                self._pulled = pulled
                if self._make_room(pulled):
                    continue
                break
            self._pulled = None
            caller = pulled.caller
            del self._callers[caller]
            self._callers[caller] = None  # behind callers that have waited longer
            caller.rows += pulled.request.width
            pulled.place(*place)
            self._admitted.append(pulled)
        return over

    def _pull(self, over: dict[Caller, None]) -> Running | None:
        if not (may_admit := self._may_admit) and self._prefixes is None:
            return None
        shares = FairShare(self._callers)
        for caller in shares.waiting():
            if not may_admit and shares.to_preempt(caller, 1) is None:
                continue
            running = None
            try:
                running = self._next_of(caller)
            except Exception as error:
                caller.fail(error)
            if caller.over:
                self.remove(caller)
                over[caller] = None
            elif running is not None:
                caller.began = True
                return running
        return None

    def _next_of(self, caller: Caller) -> Running | None:
        """Return a new request, as its prompt is often cached, or else a preempted one."""
        request = caller.next_request()
        if request is not None:
            self._check(request)
            return Running(request, caller)
        for running in self._paused:
            if running.caller is caller:
                self._paused.remove(running)
                return running
        return None

    def _make_room(self, waiting: Running) -> bool:
        """Preempt a request of a caller with more rows, if any; return whether it did.

        It is prefilled again later, so only requests of one row with known tokens qualify.
        """
        if self._prefixes is None:
            return False
        preempted = FairShare(self._callers).to_preempt(waiting.caller, waiting.request.width)
        for phase in (self._admitted, self._prefilling, self._decoding):
            for running in reversed(phase):
                if running.caller is preempted and _may_pause(running):
                    phase.remove(running)
                    [row] = running.owned
                    self._drop(running, began=False)
                    next_s = self._prefixes.stepped(np.array(running.next, np.int64))
                    running.pause(self._prefixes.tokens(row), next_s)
                    self._paused.append(running)
                    return True
        return False

    def _check(self, request: Request) -> None:
        if request.width > self.rows or request.capacity > self.capacity:
            raise ValueError(
                f"a request for {request.width} rows of {request.capacity} positions does not fit "
                f"into a cache of {self.rows} rows of {self.capacity}"
            )

    @property
    def _may_admit(self) -> bool:
        """Always true while no request runs, so that callers without requests can finish."""
        running = len(self._admitted) + len(self._prefilling) + len(self._decoding)
        return not running or (self._admission.has_free_rows and running < self._most)

    def _drop(self, running: Running, *, began: bool) -> None:
        self._batch = None
        self._release(running, running.owned, running.slot)
        if began and self._prefixes is None:
            with self._exclusive:
                self._cache = self._runtime.reset(self._cache, running.live)

    def _release(self, running: Running, rows: Sequence[int], slot: int | None) -> None:
        running.caller.rows -= len(rows)
        self._admission.release(rows, slot)

    def _begin(self) -> list[Running]:
        """Point rows of admitted requests to their inputs, or adopt their prefixes.

        Returns requests whose whole prompt was cached, or that one prefill completes.
        """
        new = self._select_beginning()
        self._prefilling += new
        if self._cache is None:
            self._cache = self._runtime.new_cache(self.rows, self.capacity, self._inputs)
        if inputs := self._admission.inputs_to_encode():
            self._encode(inputs)
        if slots := {each.rows[0]: each.slot for each in new if each.slot is not None}:
            self._cache = self._runtime.reset(self._cache, list(slots), list(slots.values()))
        began: list[Running] = []
        for prefix in dict.fromkeys(each.request.prompt.prefix for each in new):
            if prefix is not None:
                batch = Batch([each for each in new if each.request.prompt.prefix is prefix])
                rows = batch.rows
                self._adopt(rows, prefix)
                began += self._advance(batch, np.tile(prefix.logits_v, (len(rows), 1)))
        read = [each for each in new if self._reads_at_once(each)]
        if read:
            self._change([(each, OVER) for each in read])
        return began + read

    def _select_beginning(self) -> list[Running]:
        new, positions = list[Running](), 0
        while self._admitted and (self._turn is None or positions < self._turn):
            new.append(self._admitted.pop(0))
            if (read := new[-1].request.prompt.input) is not None:
                positions += read.positions
        return new

    def _adopt(self, rows: list[int], prefix: Prefix) -> None:
        if self._prefixes is not None:
            for row in rows:
                self._cut(row, 0)
            self._prefixes.feed(rows, [prefix.tokens] * len(rows))
        self._cache = self._runtime.adopt(self._cache, rows, prefix.cache, [0] * len(rows))

    def _cut(self, row: int, length: int) -> None:
        prefixes = cast(PrefixCache, self._prefixes)
        if length == prefixes.lengths[row]:
            return
        if length:
            self._cache = self._runtime.truncate(self._cache, [row], [length])
        else:
            self._cache = self._runtime.reset(self._cache, [row])
        prefixes.cut(row, length)

    def _reuse_prefix(self, running: Running, prefixes: PrefixCache) -> None:
        [row] = running.live
        tokens_s = running.sequence
        match = prefixes.match(row, tokens_s, self._cache.reachable)
        if self._cache.has_snapshots:
            # Where a row held more than can be reached, so may the next prompt that begins so.
            shared = min(max(prefixes.common(tokens_s)), len(tokens_s) - 1)
            if shared >= (match.length if match else 0) + WORTH_COPYING:
                running.border = shared
        if match is None or match.row != row:
            self._cut(row, 0)
        if match is None:
            return
        if match.row == row:
            self._cut(row, match.length)
        else:
            source = self._cache
            if match.length < prefixes.lengths[match.row]:
                source = self._runtime.truncate(source, [match.row], [match.length])
            self._cache = self._runtime.adopt(self._cache, [row], source, [match.row])
            prefixes.copy(row, match.row, match.length)
        running.skip(match.length)

    def _reads_at_once(self, running: Running) -> bool:
        return running.request.read_at_once(self._runtime, self._cache, running.rows[0])

    def _encode(self, inputs: Mapping[int, Input]) -> None:
        encoder, slots = cast(EncoderDecoder, self._runtime), list(inputs)
        most = inputs[slots[0]].most_together or len(slots)
        for first in range(0, len(slots), most):
            several = slots[first : first + most]
            source = inputs[slots[0]].batch([inputs[slot] for slot in several])
            self._cache = encoder.encode(self._cache, several, *source)

    def _prefill(self) -> list[Running]:
        """Chunked prefill: feed a chunk of each prompt; complete prompts choose a token."""
        # Requests with logits at the same offsets are computed in one call.
        calls: dict[tuple[bool, tuple[int, ...]], list[Running]] = {}
        for running in self._select_prefills():
            key = running.repeats, running.positions(self._chunk)
            calls.setdefault(key, []).append(running)
        advanced: list[Running] = []
        for (repeats, positions), several in calls.items():
            batch = Batch(several)
            fed = {each.rows[0]: each.feed(self._chunk) for each in several}
            tokens = [fed[row] for row in batch.rows]
            compute = self._runtime.decode if repeats else self._runtime.prefill
            logits_rpv, self._cache = compute(
                [plain(fed_s) for fed_s in tokens], self._cache, batch.rows, positions
            )
            if self._prefixes is not None:
                self._prefixes.feed(batch.rows, tokens)
                self._cache = self._runtime.take_snapshots(self._cache, batch.rows)
            if len(positions) > 1:
                for running, places in batch.members:
                    running.request.probed_v = logits_rpv[places][0, 0].copy()
            advanced += self._advance(batch, logits_rpv[:, -1])
        return advanced

    def _select_prefills(self) -> list[Running]:
        """Alternate between FIFO and the shortest remaining prompt: neither starves."""
        now, positions = list[Running](), 0
        self._reads_shortest = not self._reads_shortest
        prefilling = self._prefilling
        if self._reads_shortest and self._turn is not None:
            prefilling = sorted(prefilling, key=Running.unread)
        for running in prefilling:
            if self._turn is not None and positions >= self._turn:
                break
            if self._prefixes is not None and running.fresh:
                if self._waits_for_prefix(running, now):
                    continue
                self._reuse_prefix(running, self._prefixes)
            now.append(running)
            positions += running.chunk(self._chunk)
        return now

    def _waits_for_prefix(self, running: Running, now: Sequence[Running]) -> bool:
        """Return whether a request in `now` computes more of this prompt than rows hold."""
        prefixes = cast(PrefixCache, self._prefixes)
        tokens_s = running.sequence
        shared = max((in_common(tokens_s, other.sequence) for other in now), default=0)
        shared = min(shared, len(tokens_s) - 1)
        return shared >= max(prefixes.common(tokens_s)) + WORTH_COPYING

    def _decode(self) -> list[Running]:
        batch = self._batch_of_step()
        alone = batch.members[0][0]
        if len(batch.rows) == 1 and alone.request.drafts is not None:
            return self._decode_drafted(alone, alone.request.drafts)
        for running, places in batch.members:
            self._feed_again(running)
            batch.tokens_r1[places, 0] = running.next
        began = time.perf_counter()
        logits_rpv, self._cache = self._runtime.decode(batch.tokens_r1, self._cache, batch.rows)
        if self._prefixes is not None:
            self._prefixes.step(batch.rows, batch.tokens_r1)
        advanced = self._advance(batch, logits_rpv[:, -1])
        self._pace.took(len(batch.rows), time.perf_counter() - began)
        return advanced

    def _batch_of_step(self) -> Batch:
        """Return all requests, or in turns if a caller of many would delay others."""
        if self._batch is None:
            self._batch = Batch(self._decoding)
        if len({each.caller for each in self._decoding}) == 1:
            return self._batch
        now = in_rounds(self._decoding, self._pace.most())
        if len(now) == len(self._decoding):
            return self._batch
        self._decoding = [each for each in self._decoding if each not in now] + now
        return Batch(now)

    def _decode_drafted(self, running: Running, drafts: Drafts) -> list[Running]:
        """Speculative decoding: feed one row its token and drafts; accept the drafts it chooses.

        Several rows continue without drafts: in a call another row costs about as much as a draft
        token, and is never rejected. A row with a state is rolled back to a snapshot, and the
        tokens accepted since then are fed again with its next one.
        """
        [row] = running.live
        held, again = int(self._cache.lengths[row]), len(running.next) - 1
        drafted: Sequence[int] = ()
        if not again:
            room = running.request.capacity - held - 1
            trial = Trial(self._runtime, self._cache, row, kept=1, most=room)
            drafted = drafts.propose(trial.most) if trial.most > 0 else ()
        began = time.perf_counter()
        if drafted:
            self._cache = trial.begin(self._cache, len(drafted))
        fed_s = np.array([*running.next, *drafted], np.int64)
        logits_rpv, self._cache = self._runtime.decode(
            [fed_s], self._cache, [row], range(again, len(fed_s))
        )
        seconds = time.perf_counter() - began
        for kept, draft in enumerate([*drafted, None], start=1):
            chosen = running.choose(logits_rpv[:, kept - 1])
            if chosen.tokens != [draft]:
                break
        drafts.called(len(fed_s), kept, seconds, len(drafted))
        stays = again + kept
        if stays < len(fed_s):
            self._cache, reached = roll_back(self._runtime, self._cache, row, held + stays)
            stays = reached - held
            running.next = [*fed_s[stays : again + kept].tolist(), *running.next]
        if self._prefixes is not None:
            self._prefixes.feed([row], [self._prefixes.stepped(fed_s[:stays])])
        if chosen.rows != running.live_indices:
            self._change([(running, chosen)])
        return [running]

    def _feed_again(self, running: Running) -> None:
        """Feed a row again the tokens that a rollback removed, except the token it chose last."""
        lost, running.next = running.next[: -len(running.live)], running.next[-len(running.live) :]
        if not lost:
            return
        fed_s = np.array(lost, np.int64)
        _, self._cache = self._runtime.decode([fed_s], self._cache, running.live)
        if self._prefixes is not None:
            self._prefixes.feed(running.live, [self._prefixes.stepped(fed_s)])

    def _advance(self, batch: Batch, logits_rv: Float32) -> list[Running]:
        advanced: list[Running] = []
        changes: list[tuple[Running, Continuations]] = []
        for running, places in batch.members:
            if running.reads:
                continue
            chosen = running.choose(logits_rv[places])
            if not chosen.rows == chosen.parents == running.live_indices:
                changes.append((running, chosen))
            advanced.append(running)
        if changes:
            self._change(changes)
        return advanced

    def _change(self, changes: Sequence[tuple[Running, Continuations]]) -> None:
        parents = list(range(self.rows))
        emptied: list[int] = []
        for running, chosen in changes:
            for row, parent in zip(chosen.rows, chosen.parents, strict=True):
                parents[running.rows[row]] = running.rows[parent]
            if chosen.rows != running.live_indices:
                emptied += self._keep(running, chosen.rows)
        if parents != list(range(len(parents))):
            self._cache = self._runtime.reorder(self._cache, parents)
            if self._prefixes is not None:
                self._prefixes.reorder(parents)
        if emptied and self._prefixes is None:
            self._cache = self._runtime.reset(self._cache, sorted(emptied))

    def _keep(self, running: Running, indices: list[int]) -> list[int]:
        live = [running.rows[number] for number in indices]
        emptied = [row for row in running.live if row not in live]
        if len(live) < len(running.owned):
            left = [row for row in running.owned if row not in live]
            self._release(running, left, None if live else running.slot)
        if running in self._prefilling:
            self._prefilling.remove(running)
            self._decoding.append(running)
        if not live:
            self._decoding.remove(running)
        running.owned = running.live = live
        running.live_indices = indices
        running.request.done = not live
        self._batch = None
        return emptied


def _may_pause(running: Running) -> bool:
    return running.request.width == 1 and running.request.prompt.prefix is None
