"""Half an hour of live transcription in a process of its own, which tells what memory it took.

Prints one JSON object: bytes after 5 and after 30 minutes, and how many updates came.
"""

import json

import numpy as np
import psutil

import kvcast
from kit.recordings import SPOKEN, read

RATE = 16_000
MEASURED = {300, 1800}


def main() -> None:
    """Hear utterances of 7 s, all of them different, and silence."""
    live = kvcast.load("demo", threads=1).live(step=2.0)
    speech, silence = read(SPOKEN), np.zeros(13 * RATE, np.float32)
    used: dict[int, int] = {}
    updates = 0
    for number in range(90):
        at = number * 31_013 % (len(speech) - 7 * RATE)
        sound = np.concatenate([speech[at : at + 7 * RATE], silence])
        for begin in range(0, len(sound), RATE):
            updates += len(live.feed(sound[begin : begin + RATE]))
        if live.duration in MEASURED:
            used[int(live.duration)] = psutil.Process().memory_info().rss
    print(json.dumps({"used": used, "updates": updates}))


if __name__ == "__main__":
    main()
