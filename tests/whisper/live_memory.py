"""Transcribe live for minutes in a subprocess, and report its memory.

The argument is their number. Prints one JSON object: bytes that Python and NumPy hold and those of
the process, each after a sixth and after all of them, and how many updates came.
"""

import json
import sys
import tracemalloc

import numpy as np
import psutil

import kvcast
from kit.recordings import SPOKEN, read

RATE = 16_000


def main(minutes: int) -> None:
    """Transcribe different utterances of 7 s, and silence."""
    measured = (10 * minutes, 60 * minutes)
    tracemalloc.start()
    live = kvcast.load("demo", threads=1).live(step=2.0)
    speech, silence = read(SPOKEN), np.zeros(13 * RATE, np.float32)
    held: list[int] = []
    resident: list[int] = []
    updates = 0
    for number in range(3 * minutes):
        at = number * 31_013 % (len(speech) - 7 * RATE)
        sound = np.concatenate([speech[at : at + 7 * RATE], silence])
        for begin in range(0, len(sound), RATE):
            updates += len(live.feed(sound[begin : begin + RATE]))
        if live.duration in measured:
            held.append(tracemalloc.get_traced_memory()[0])
            resident.append(psutil.Process().memory_info().rss)
    print(json.dumps({"held": held, "resident": resident, "updates": updates}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
