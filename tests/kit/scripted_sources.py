"""A scripted encoder-decoder runtime of texts: what comes next follows from source and target.

Beside the interface it holds its caller to the sources' dtypes, and shows what was encoded.
"""

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.scripted_runtime import Script, ScriptedRuntime


class ScriptedSources(ScriptedRuntime):
    """`sources` lists, for each encode, the tokens of its sources."""

    def __init__(self, script: Script, context: int = 448) -> None:
        super().__init__(script, context)
        self.sources: list[list[tuple[int, ...]]] = []

    def numbers(self, *source: NDArray[Any]) -> list[int]:
        tokens_bt, lengths_b = source
        assert (tokens_bt.dtype, lengths_b.dtype) == (np.int64, np.int32)
        assert lengths_b.max() == tokens_bt.shape[1]
        sources = [
            tuple(tokens_t[:length].tolist())
            for tokens_t, length in zip(tokens_bt, lengths_b, strict=True)
        ]
        self.sources.append(sources)
        return list(map(number_of, sources))


def number_of(source: tuple[int, ...]) -> int:
    """What a script calls a source."""
    return zlib.crc32(repr(source).encode())
