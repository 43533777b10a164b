"""Folders that optimum-executorch writes: one program, `model.pte`.

The program keeps its caches itself, for one row. `forward` takes tokens and their positions; with
an encoder `text_decoder` takes one token, what `encoder` gave, and the position. Methods without
arguments tell sizes.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.runtimes.base import Float32, Int64
from kvcast.runtimes.executorch.methods import Methods
from kvcast.runtimes.self_test import versions
from kvcast.verification.foreign.base import ForeignModel, Source, StepWork
from kvcast.verification.foreign.executorch_program import MethodInstructions

_FORWARD, _ENCODER, _DECODER = "forward", "encoder", "text_decoder"
_FEATURES = 3  # dimensions of an encoder's argument that are features


class ExecutorchProgram(ForeignModel):
    """A loaded program."""

    exporter = "optimum-executorch"
    runtime = "ExecuTorch"
    most_rows = 1

    def __init__(self, path: Path, threads: int) -> None:
        self._methods = Methods(path, threads)
        names = self._methods.names
        self._decode = _DECODER if _DECODER in names else _FORWARD
        if self._decode not in names or (self._decode == _DECODER and _ENCODER not in names):
            raise KvcastError(
                f"{path} has neither {_FORWARD} nor {_ENCODER} and {_DECODER}: its methods are "
                f"{', '.join(sorted(names))[:120]}"
            )
        shapes = self._methods.shapes(self._decode)
        arguments = 3 if self._decode == _DECODER else 2
        if len(shapes) != arguments or len(shapes[0]) != 2:
            raise KvcastError(f"{path}: {self._decode} takes other arguments than tokens: {shapes}")
        self._most_tokens = shapes[0][1]
        self.takes_chunks = self._most_tokens > 1
        self.capacity = self._number("get_max_seq_len")
        self.vocab_size = self._number("get_vocab_size") or 0
        self.tools = versions("executorch")
        self._path = path
        self._instructions = MethodInstructions(path, self._decode)
        self.precision = self._instructions.precision()
        if self._decode == _DECODER:
            of_features = len(self._methods.shapes(_ENCODER)[0]) == _FEATURES
            self.encoder = "features" if of_features else "tokens"
        if not self._instructions.caches:
            raise KvcastError(f"{path}: {self._decode} writes no cache: export it with one")
        self._length = 0
        self._encoded: list[torch.Tensor] = []

    @override
    def begin(self, rows: int, source: Source = ()) -> None:
        if rows != 1:
            raise ValueError("the program's caches have one row")
        self._length = 0
        given = [torch.from_numpy(np.ascontiguousarray(part)) for part in source]
        self._encoded = self._methods.run(_ENCODER, given)[:1] if given else []

    @override
    def feed(self, tokens_rs: Int64) -> Float32:
        parts = [
            self._call(part)
            for part in np.array_split(tokens_rs, self._cuts(tokens_rs.shape[1]), axis=1)
        ]
        return np.concatenate(parts, axis=1)

    @override
    def cut(self, length: int) -> None:
        self._length = length

    @override
    def reorder(self, parents: Sequence[int]) -> None:
        raise ValueError("the program's caches have one row")

    @override
    def held_bytes(self) -> int:
        return sum(cache.nbytes for cache in self._instructions.caches if not cache.filled)

    @override
    def work(self) -> StepWork:
        return StepWork(
            caches={f"value {cache.number}": cache.how for cache in self._instructions.caches},
            moved=self._instructions.movements(),
            recomputed=self._instructions.recomputed(),
            spans_capacity=self._instructions.spans_capacity,
        )

    def _call(self, tokens_1s: Int64) -> Float32:
        new = tokens_1s.shape[1]
        places = torch.arange(self._length, self._length + new)
        tokens = torch.from_numpy(np.ascontiguousarray(tokens_1s, np.int64))
        (logits, *_) = self._methods.run(self._decode, [tokens, *self._encoded, places])
        self._length += new
        logits_1sv: Float32 = logits.float().numpy()
        return logits_1sv

    def _cuts(self, count: int) -> Sequence[int]:
        """Return where tokens are cut into pieces of as many as a call takes."""
        return range(self._most_tokens, count, self._most_tokens)

    def _number(self, method: str) -> int | None:
        """Return what a method without arguments tells."""
        if method not in self._methods.names:
            return None
        (value, *_) = self._methods.run(method, [])
        return int(value) if int(value) > 0 else None
