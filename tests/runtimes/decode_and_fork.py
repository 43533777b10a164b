"""Forks while another thread decodes, and compares what the child decodes with what it should.

A program of its own, as a fork copies the locks of all threads, and those of tests are not meant.
Takes the folder of a decoder's bundle.
"""

import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np

from kvcast.bundle.manifest import read_bundle
from kvcast.runtimes.base import exclusive
from kvcast.runtimes.target import TARGETS

FORKS, SECONDS = 20, 600


def decoded(runtime, steps: int) -> list[int]:
    """Return tokens, each the likeliest after those before it."""
    cache, tokens = runtime.new_cache(1, 64), [1, 2, 3]
    new = tokens
    for _ in range(steps):
        with exclusive(runtime):
            logits, cache = runtime.decode([np.array(new)], cache)
            new = [int(logits[0, -1].argmax())]
        tokens += new
    return tokens


def child(runtime, expected: list[int]) -> None:
    signal.alarm(SECONDS)
    # Sizes that nobody planned before, too.
    runtime.decode([np.arange(1, 6)], runtime.new_cache(1, 9))
    os._exit(0 if decoded(runtime, len(expected) - 3) == expected else 1)


def hold(runtime, held: threading.Event, over: threading.Event) -> None:
    """Take the locks in another thread as a call has them that is under way at a fork."""
    inner = runtime.interpreter
    with exclusive(runtime), inner._planning, inner._lock:
        held.set()
        over.wait()


def fork(runtime, expected: list[int]) -> int:
    pid = os.fork()
    if pid == 0:
        child(runtime, expected)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


folder = Path(sys.argv[1])
manifest = read_bundle(folder)
runtime = TARGETS[manifest.runtime].open(manifest.family, folder, manifest, 2)
expected = decoded(runtime, 20)

stopping = threading.Event()


def decode_on() -> None:
    while not stopping.is_set():
        assert decoded(runtime, 20) == expected


busy = threading.Thread(target=decode_on)
busy.start()
codes = [fork(runtime, expected) for _ in range(FORKS)]
stopping.set()
busy.join()

held, over = threading.Event(), threading.Event()
holder = threading.Thread(target=hold, args=(runtime, held, over))
holder.start()
held.wait()
codes.append(fork(runtime, expected))
over.set()
holder.join()

# A process may be forked in the middle of its own turn.
with exclusive(runtime):
    codes.append(fork(runtime, expected))
assert decoded(runtime, 20) == expected
print(set(codes))
