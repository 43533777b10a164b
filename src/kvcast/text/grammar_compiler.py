"""Compiles grammars in child processes: few at a time, each grammar once, by CPU time.

The parent of grammar_process.py. A grammar first gets a short time slice, small ones first. One
that needs longer waits for all new ones, and is interrupted for them: it may never end.
"""

import atexit
import contextlib
import heapq
import json
import os
import subprocess
import sys
import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from kvcast.decoding.grammar import Grammar
from kvcast.errors import KvcastError
from kvcast.machine.resources import available_cores

SECONDS = 10.0
"""Most processor time that a grammar may take to be compiled."""

SHORT = 0.2
"""Processor time of the first trial."""

MOST_WAITING = 256
MOST_KEPT = 4096
"""Grammars that may wait, and outcomes that are kept."""

_GIVES_WAY = 3
"""How often a long trial is ended for grammars without a trial."""
_WALL = 30.0
"""How many times as long as its processor time a trial may take."""

_PROGRAM = Path(__file__).with_name("grammar_process.py")
_FOR_TIME = -27  # SIGPROF


class FullError(KvcastError):
    """A grammar is not compiled: the queue is full, or the process is exiting."""


@dataclass(order=True)
class _Trial:
    """A grammar that waits or is compiled; sorted by turn."""

    long: bool
    size: int
    number: int
    grammar: Grammar = field(compare=False)
    outcome: "Future[str]" = field(compare=False, default_factory=Future)
    gave_way: int = field(compare=False, default=0)


class Trials:
    """The grammars that are tried, for all models of this process."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most or max(1, available_cores() // 2)
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[_Trial] = []
        self._known: OrderedDict[Grammar, Future[str]] = OrderedDict()
        self._workers: list[_Worker] = []
        self._ids = count()
        self._closed = False

    def outcome(self, grammar: Grammar) -> "Future[str]":
        """Return a grammar's future problem, one line or empty; FullError if too many wait."""
        with self._changed:
            if (known := self._known.get(grammar)) is not None:
                self._known.move_to_end(grammar)
                return known
            if len(self._waiting) >= MOST_WAITING:
                raise FullError("too many new schemas and patterns wait: try again later")
            trial = _Trial(False, len(grammar.text) >> 10, next(self._ids), grammar)
            self._known[grammar] = trial.outcome
            self._forget_oldest()
            heapq.heappush(self._waiting, trial)
            self._find_worker()
            self._changed.notify()
        return trial.outcome

    def close(self) -> None:
        with self._changed:
            self._closed = True
            waiting, self._waiting = self._waiting, []
            for trial in waiting:
                trial.outcome.set_exception(_over())
            for worker in self._workers:
                worker.give_way()

    def next(self, worker: "_Worker") -> _Trial:
        with self._changed:
            worker.begin(None)
            self._changed.wait_for(lambda: self._waiting)
            trial = heapq.heappop(self._waiting)
            worker.begin(trial)
            return trial

    def again(self, trial: _Trial) -> None:
        with self._changed:
            if self._closed:
                trial.outcome.set_exception(_over())
                return
            trial.long = True
            heapq.heappush(self._waiting, trial)
            self._changed.notify()

    def forget(self, trial: _Trial) -> None:
        """Drop an outcome that does not depend on the grammar."""
        with self._changed:
            self._known.pop(trial.grammar, None)

    def _forget_oldest(self) -> None:
        for grammar in [known for known, problem in self._known.items() if problem.done()]:
            if len(self._known) <= MOST_KEPT:
                return
            del self._known[grammar]

    def _find_worker(self) -> None:
        if any(worker.trial is None for worker in self._workers):
            return
        if len(self._workers) < self._most:
            self._workers.append(_Worker(self))
            return
        for worker in self._workers:
            trial = worker.trial
            if trial is not None and trial.long and trial.gave_way < _GIVES_WAY:
                trial.gave_way += 1
                worker.give_way()
                return


class _Worker:
    def __init__(self, trials: Trials) -> None:
        self.trial: _Trial | None = None
        self._trials = trials
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._gives_way = False
        self._slow = False
        threading.Thread(target=self._work, name="kvcast-grammars", daemon=True).start()

    def give_way(self) -> None:
        """End the trial that runs, or will next; it is retried later."""
        with self._lock:
            self._gives_way = True
            if self._process is not None:
                self._process.kill()

    def begin(self, trial: _Trial | None) -> None:
        with self._lock:
            self.trial, self._gives_way = trial, False

    def _work(self) -> None:
        while True:
            trial = self._trials.next(self)
            try:
                self._try(trial)
            except BaseException as error:  # must reach whoever waits
                trial.outcome.set_exception(error)
                self._trials.forget(trial)

    def _try(self, trial: _Trial) -> None:
        self._slow = False
        try:
            problem = self._ask(trial.grammar, SECONDS if trial.long else min(SHORT, SECONDS))
        except OSError as error:  # no interpreter: a program that embeds Python may have none
            if self._process is not None:
                raise
            del error
            self._trials.forget(trial)
            trial.outcome.set_result("")
            return
        if problem is None:
            status = self._end() if self._process is not None else 0
            if self._gives_way or (status == _FOR_TIME and not trial.long):
                self._trials.again(trial)
                return
            how = f"its process ended with {_ending(status)}"
            if status == _FOR_TIME or self._slow:
                how = f"it takes more than {SECONDS:g} s of a processor"
            problem = f"\n{how}"
        trial.outcome.set_result(problem)

    def _ask(self, grammar: Grammar, seconds: float) -> str | None:
        with self._lock:
            if self._gives_way:
                return None
            process = self._process or self._started()
        request = {"kind": grammar.kind, "text": grammar.text, "seconds": seconds}
        watch = threading.Timer(seconds * _WALL, self._kill_slow)
        watch.daemon = True
        watch.start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
        except (OSError, ValueError):
            return None
        finally:
            watch.cancel()
        if answer["last"]:
            self._end()
        problem: str = answer["problem"]
        return problem

    def _started(self) -> "subprocess.Popen[bytes]":
        importable = os.pathsep.join(str(Path(folder).absolute()) for folder in sys.path if folder)
        self._process = subprocess.Popen(  # noqa: S603, our own program
            [sys.executable, "-P", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=_PROGRAM.parent,
            env=os.environ | {"PYTHONPATH": importable},
        )
        return self._process

    def _kill_slow(self) -> None:
        self._slow = True
        if self._process is not None:
            self._process.kill()

    def _end(self) -> int:
        with self._lock:
            process, self._process = self._process, None
        assert process is not None
        if process.stdout is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.stdout.close()
        try:
            return process.wait(1)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def _over() -> FullError:
    return FullError("the program ends: no grammar is tried any more")


def _ending(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"code {status}"


TRIALS = Trials()
"""Of this process; a fork begins anew."""

atexit.register(TRIALS.close)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TRIALS._reset)
