"""A format whose cases end as their file says: what the runner must notice."""

import os
import signal
from pathlib import Path

import numpy as np

from kvcast.errors import KvcastError
from mutation.damage import damaged_bytes
from mutation.whole import Format

ENDINGS = ("opened", "refused", "traceback", "panic", "crashed", "hung", "memory")


def behave(folder: Path) -> None:
    match (folder / "ending").read_text():
        case "refused":
            raise KvcastError("damaged")
        case "traceback":
            raise IndexError("list index out of range")
        case "panic":
            raise SystemExit
        case "crashed":
            os.abort()
        case "hung":
            signal.pause()
        case "memory":
            np.ones(1 << 28, np.uint8)


FORMATS = {"failing": Format("", lambda _: None, damaged_bytes, "file", behave, room=1 << 27)}
