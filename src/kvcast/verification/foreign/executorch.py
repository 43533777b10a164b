"""ExecuTorch programs: how a step updates its caches, and a decoder that runs one.

Caches are values in the program's own memory that instructions write. Sizes of values that depend
on the number of tokens are upper bounds, so they are left out, and so is a delegate's inside.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from kvcast.errors import InputOutputError, KvcastError
from kvcast.runtimes.base import Float32, Int64
from kvcast.runtimes.executorch.methods import Methods, quiet
from kvcast.runtimes.self_test import versions
from kvcast.spec.runtimes import BundlePrecision
from kvcast.verification.foreign.base import ForeignModel, How, Movement, Source, StepWork

_WRITTEN_BACK = "aten::copy_"
_ANEW = "aten::index_put"
_IN_PLACE: Mapping[str, int] = {"llama::update_cache": 1, "aten::index_put_": 0}
"""Operators that write a cache where it lies, and which of their arguments it is."""
_MOVING = (
    *("aten::expand_copy", "aten::permute_copy", "aten::view_copy", "aten::slice_copy"),
    *("aten::cat", "aten::clone", "aten::_to_copy", "aten::transpose_copy", "aten::repeat"),
)
_OF_PREFIXES = "llama::custom_sdpa"
"""Attention over the positions in use; any other meets all slots of a cache."""
_QUANTIZED = ("quantized_decomposed", "torchao", "llama::quantized")
_DIMENSIONS = 4
_DTYPES: Mapping[str, tuple[str, int]] = {
    "FLOAT": ("fp32", 4),
    "HALF": ("fp16", 2),
    "BFLOAT16": ("bf16", 2),
    "CHAR": ("int8", 1),
}


@dataclass(frozen=True)
class CacheValue:
    """A cache's tensor; `filled`: a step writes all of it from values computed in that step."""

    number: int  # in the method
    sizes: tuple[int, ...]
    nbytes: int
    how: How
    filled: bool


class MethodInstructions:
    def __init__(self, path: Path, method: str) -> None:
        plan = _plan(path, method)
        self._values = [value.val for value in plan.values]
        self._operators = [operator.name for operator in plan.operators]
        calls = [
            instruction.instr_args for chain in plan.chains for instruction in chain.instructions
        ]
        self._calls = [
            (self._operators[call.op_index], list(call.args))
            for call in calls
            if type(call).__name__ == "KernelCall"
        ]
        self.caches: Sequence[CacheValue] = self._caches()

    def movements(self) -> Sequence[Movement]:
        """Return the operators that write as many bytes as a whole cache."""
        own = [cache for cache in self.caches if not cache.filled]
        least = min((cache.nbytes for cache in own), default=0)
        found: dict[str, list[int]] = {}
        for operator, arguments in self._calls:
            target = arguments[0] if operator == _WRITTEN_BACK else arguments[-1]
            moves = operator in (_ANEW, _WRITTEN_BACK, *_MOVING)
            if least and moves and (size := self._static_bytes(target)) >= least:
                found.setdefault(operator.partition("::")[2], []).append(size)
        return [
            Movement(operator=operator, count=len(sizes), fixed=sum(sizes), per_position=0)
            for operator, sizes in found.items()
        ]

    def recomputed(self) -> Mapping[str, int]:
        """Count the caches that a step of one token fills whole, by operator."""
        filled = sum(cache.filled for cache in self.caches)
        return {_ANEW.partition("::")[2]: filled} if filled else {}

    @property
    def spans_capacity(self) -> bool:
        return bool(self.caches) and _OF_PREFIXES not in self._operators

    def precision(self) -> BundlePrecision:
        """Return the narrowest dtypes among operators and caches."""
        if any(name.startswith(_QUANTIZED) for name in self._operators):
            return BundlePrecision(quantize="int8")
        dtypes = Counter(self._values[cache.number].scalar_type.name for cache in self.caches)
        dtype = _DTYPES[dtypes.most_common(1)[0][0]][0] if dtypes else "fp32"
        return BundlePrecision(quantize="none", dtype=dtype, cache=dtype)

    def _caches(self) -> Sequence[CacheValue]:
        made = {
            arguments[-1]: arguments for operator, arguments in self._calls if operator == _ANEW
        }
        found: dict[int, tuple[How, bool]] = {}
        for operator, arguments in self._calls:
            if operator == _WRITTEN_BACK and self._is_state(arguments[0]):
                put = made.get(arguments[1])
                source = self._static_bytes(put[2]) if put else 0
                whole = source >= self._bytes(arguments[0]) > 0
                found[arguments[0]] = "copied", whole
            elif (place := _IN_PLACE.get(operator)) is not None and self._is_state(
                arguments[place]
            ):
                found[arguments[place]] = "in place", False
        return [
            CacheValue(number, tuple(self._values[number].sizes), self._bytes(number), how, filled)
            for number, (how, filled) in sorted(found.items())
        ]

    def _is_state(self, number: int) -> bool:
        value = self._values[number]
        return (
            type(value).__name__ == "Tensor"
            and len(value.sizes) == _DIMENSIONS
            and not value.data_buffer_idx
        )

    def _bytes(self, number: int) -> int:
        value = self._values[number]
        if type(value).__name__ != "Tensor" or value.scalar_type.name not in _DTYPES:
            return 0
        return int(prod(value.sizes)) * _DTYPES[value.scalar_type.name][1]

    def _static_bytes(self, number: int) -> int:
        """Return a tensor's bytes; 0 where they depend on the number of tokens."""
        value = self._values[number]
        if type(value).__name__ != "Tensor" or value.shape_dynamism.name != "STATIC":
            return 0
        return self._bytes(number)


def _plan(path: Path, method: str) -> Any:
    with quiet():
        from executorch.exir._serialize._program import deserialize_pte_binary
    try:
        program = deserialize_pte_binary(path.read_bytes()).program
    except OSError as error:
        raise InputOutputError(f"cannot read {path}: {error.strerror}") from None
    except Exception:
        raise KvcastError(f"{path} is no ExecuTorch program; export it again") from None
    return next(plan for plan in program.execution_plan if plan.name == method)


_FORWARD, _ENCODER, _DECODER = "forward", "encoder", "text_decoder"
_FEATURES = 3  # dimensions of an encoder's argument that are features


class ExecutorchProgram(ForeignModel):
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
        """Return the bounds of pieces of as many tokens as a call takes."""
        return range(self._most_tokens, count, self._most_tokens)

    def _number(self, method: str) -> int | None:
        if method not in self._methods.names:
            return None
        (value, *_) = self._methods.run(method, [])
        return int(value) if int(value) > 0 else None
