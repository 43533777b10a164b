"""The attention instructions over NumPy arrays, and what they must give, in float64."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from kvcast.runtimes.native.library import Machine
from kvcast.runtimes.native.opcodes import SCALE_BYTES, Operation, bits
from runtimes.native.guarded import guarded
from runtimes.native.native_calls import machine, strided

Array = NDArray[Any]
_NUMBERS = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, np.dtype(np.int8): 5}
NONE = np.zeros(0, np.float32)


def _flat(lines: Array) -> list[int]:
    return [lines.ctypes.data, lines.strides[0] // 4]


def _heads(cache_nhtd: Array) -> list[int]:
    size = cache_nhtd.itemsize
    assert cache_nhtd.strides[2:] == (cache_nhtd.shape[3] * size, size)
    strides = [stride // size for stride in cache_nhtd.strides[:2]]
    return [cache_nhtd.ctypes.data, _NUMBERS[cache_nhtd.dtype], *strides]


def line(head_dim: int, number: Any) -> int:
    """Numbers of a position of a head in a cache."""
    return head_dim + (SCALE_BYTES if number == np.int8 else 0)


def stored(x: Array, number: Any) -> Array:
    """What a cache holds of x [..., d]: of int8, codes and the bytes of their scale."""
    if number != np.int8:
        return x.astype(number)
    most = np.abs(x).max(-1, keepdims=True, initial=0).astype(np.float32)
    is_zero = most < np.float32(1e-30)
    scales = np.where(is_zero, np.float32(0), most / np.float32(127))
    inverse = np.where(is_zero, np.float32(0), np.float32(127) / np.where(is_zero, 1, most))
    codes = np.rint(x.astype(np.float32) * inverse.astype(np.float32)).astype(np.int8)
    return np.concatenate([codes, scales.astype(np.float32).view(np.int8)], -1)


def numbers(lines: Array) -> Array:
    """What positions of a cache stand for."""
    if lines.dtype != np.int8:
        return lines.astype(np.float64)
    codes, scales = np.split(lines, [lines.shape[-1] - SCALE_BYTES], axis=-1)
    scaled: Array = codes * np.ascontiguousarray(scales).view(np.float32).astype(np.float64)
    return scaled


def nothing(shape: tuple[int, ...], number: Any) -> Array:
    """Positions of a cache that are NaN."""
    return np.full(shape, -1 if number == np.int8 else np.nan, number)


def _bias(bias_rhst: Array | None) -> list[int]:
    if bias_rhst is None:
        return [0, 0, 0, 0]
    steps = zip(bias_rhst.shape[:3], bias_rhst.strides[:3], strict=True)
    strides = [0 if size == 1 else stride // 4 for size, stride in steps]
    return [bias_rhst.ctypes.data, *strides]


def _pointer(array: Array | None) -> int:
    return 0 if array is None else array.ctypes.data


def run(on: Machine, operation: Operation, words: list[int]) -> None:
    on.run(np.array([operation, len(words), *words], np.int64))


class Brief:
    """Shows arrays by their shapes."""

    def __repr__(self) -> str:
        shown = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{n}={_brief(x)}' for n, x in shown.items())})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # Hypothesis's own would write all numbers


def _brief(x: Any) -> str:
    if isinstance(x, list):
        return f"[{', '.join(map(_brief, x))}]"
    return f"{x.dtype}{list(x.shape)}" if isinstance(x, np.ndarray) else str(x)


@dataclass(frozen=True, kw_only=True, repr=False)
class SelfCall(Brief):
    """A call over caches whose slots hold NaN wherever no new position may look."""

    query: Array  # [r, s, h, d]
    key: Array  # [r, s, g, d]
    value: Array
    past_keys: list[Array]  # of each row: [length, g, line], as stored
    past_values: list[Array]
    key_number: Any
    value_number: Any
    capacity: int
    scale: float = 0.3
    softcap: float = 0.0
    window: int = 0
    causal: bool = True
    prompt: bool = False
    cosines: Array | None = None
    sines: Array | None = None
    sinks: Array | None = None  # [h]
    bias: Array | None = None  # [r or 1, h or 1, s, c]
    cross_key: Array | None = None  # [b, g, t, line], NaN past an input's length
    cross_value: Array | None = None
    cross_lengths: Array | None = None
    gap: int = 0  # between lines

    @property
    def rows_each(self) -> int:
        return 1 if self.cross_key is None else len(self.query) // len(self.cross_key)

    @property
    def lengths(self) -> Array:
        return np.array([len(past) for past in self.past_keys], np.int32)

    def rows(self, first: int, last: int) -> Self:
        bias, inputs = self.bias, np.arange(first, last) // self.rows_each
        own = (self.cross_key, self.cross_value, self.cross_lengths)
        cross = [part if part is None else part[inputs] for part in own]
        return replace(
            self,
            cross_key=cross[0],
            cross_value=cross[1],
            cross_lengths=cross[2],
            query=self.query[first:last],
            key=self.key[first:last],
            value=self.value[first:last],
            past_keys=self.past_keys[first:last],
            past_values=self.past_values[first:last],
            bias=bias if bias is None or len(bias) == 1 else bias[first:last],
        )

    def caches(self) -> tuple[Array, Array]:
        """Return caches before the call."""
        rows, _, heads, head_dim = self.key.shape
        made = []
        for pasts, number in (
            (self.past_keys, self.key_number),
            (self.past_values, self.value_number),
        ):
            cache = nothing((rows, heads, self.capacity, line(head_dim, number)), number)
            for row, past in enumerate(pasts):
                first = len(past) + 1 - self.window if self.window else 0
                if not self.causal and self.window:
                    first += self.key.shape[1] - 1
                for position in range(max(0, first), len(past)):
                    cache[row, :, position % self.capacity] = past[position]
            made.append(guarded(cache))
        return made[0], made[1]

    def rotated(self, x: Array) -> Array:
        """Rotate x [r, s, heads, d] in float64."""
        x = x.astype(np.float64)
        if self.cosines is None or self.sines is None:
            return x
        at = self.lengths[:, None] + np.arange(x.shape[1])
        cosines, sines = (
            table.astype(np.float64)[at][:, :, None] for table in (self.cosines, self.sines)
        )
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cosines - b * sines, b * cosines + a * sines], -1)

    def run(self, threads: int, instructions: str) -> tuple[Array, Array, Array]:
        """Return the result [r, s, h, d] and the caches after the call."""
        rows, new, heads, head_dim = self.query.shape
        key_heads = self.key.shape[2]
        query, key, value = (
            strided(x.reshape(rows * new, -1), x[0, 0].size + self.gap)
            for x in (self.query, self.key, self.value)
        )
        out = strided(np.full((rows * new, heads * head_dim), np.nan), heads * head_dim + self.gap)
        keys, values = self.caches()
        lengths = guarded(self.lengths)
        tables = [None if table is None else guarded(table) for table in (self.cosines, self.sines)]
        bias = None if self.bias is None else guarded(self.bias)
        words = [rows, new, heads, key_heads, head_dim, self.capacity]
        words += [*_flat(query), *_flat(key), *_flat(value), *_heads(keys), *_heads(values)]
        words += [lengths.ctypes.data, 0, bits(self.scale), bits(self.softcap), self.window]
        sinks = None if self.sinks is None else guarded(self.sinks)
        words += [int(self.causal), int(self.prompt), *map(_pointer, (*tables, sinks))]
        cross, held = self.encoded()
        words += [*_bias(bias), *cross, *_flat(out)]
        run(machine(threads, instructions), Operation.SELF_ATTENTION, words)
        del held
        return out.reshape(self.query.shape).copy(), keys, values

    def encoded(self) -> tuple[list[int], list[Array]]:
        """Return the words of the inputs that are attended to as well, and what they point to."""
        if self.cross_key is None or self.cross_value is None:
            return [0] * 10 + [1], []
        held = [guarded(self.cross_key), guarded(self.cross_value)]
        lengths = [] if self.cross_lengths is None else [guarded(self.cross_lengths)]
        words = [word for cache in held for word in _heads(cache)]
        words += [_pointer(lengths[0] if lengths else None), self.cross_key.shape[2]]
        return [*words, self.rows_each], [*held, *lengths]

    def again(
        self, offsets: list[int], keys: Array, values: Array, threads: int, instructions: str
    ) -> Array:
        """Return the results [r, offsets, h, d] of some queries, over caches after the call."""
        rows, _, heads, head_dim = self.query.shape
        asked, width = len(offsets), heads * head_dim
        query = strided(self.query[:, offsets].reshape(rows * asked, width), width + self.gap)
        out = strided(np.full((rows * asked, width), np.nan), width + self.gap)
        lengths, at = guarded(self.lengths), guarded(np.array(offsets, np.int64))
        tables = [None if table is None else guarded(table) for table in (self.cosines, self.sines)]
        sinks = None if self.sinks is None else guarded(self.sinks)
        words = [rows, asked, heads, self.key.shape[2], head_dim, self.capacity]
        words += [*_flat(query), 0, 0, 0, 0, *_heads(keys), *_heads(values)]
        words += [lengths.ctypes.data, at.ctypes.data, bits(self.scale), bits(self.softcap)]
        cross, held = self.encoded()
        words += [self.window, 1, 0, *map(_pointer, (*tables, sinks)), *_bias(None), *cross]
        run(machine(threads, instructions), Operation.SELF_ATTENTION, [*words, *_flat(out)])
        del held
        return out.reshape(rows, asked, heads, head_dim).copy()

    def expected(self) -> Array:
        rows, new, heads, _ = self.query.shape
        groups = heads // self.key.shape[2]
        query, key = self.rotated(self.query), self.rotated(self.key)
        out = np.zeros(self.query.shape)
        for row in range(rows):
            length = int(self.lengths[row])
            new_keys = stored(key[row], self.key_number)
            new_values = stored(self.value[row], self.value_number)
            keys = numbers(np.concatenate([self.past_keys[row], new_keys]))
            values = numbers(np.concatenate([self.past_values[row], new_values]))
            for s in range(new):
                last = length + (s + 1 if self.causal else new)
                first = max(0, last - self.window) if self.window else 0
                for head in range(heads):
                    g = head // groups
                    bias = None
                    other_keys, other_values = self.beside(row, g)
                    if self.bias is not None:
                        own = np.broadcast_to(self.bias, (rows, heads, new, self.capacity))
                        bias = own[row, head, s, first:last]
                        bias = np.concatenate([bias, np.zeros(len(other_keys))])
                    out[row, s, head] = attended(
                        query[row, s, head],
                        np.concatenate([keys[first:last, g], other_keys]),
                        np.concatenate([values[first:last, g], other_values]),
                        self.scale,
                        bias,
                        self.softcap,
                        None if self.sinks is None else self.sinks[head],
                    )
        return out

    def beside(self, row: int, group: int) -> tuple[Array, Array]:
        """Return keys and values [t, d] of a row's input."""
        if self.cross_key is None or self.cross_value is None:
            return (np.zeros((0, self.key.shape[-1])),) * 2
        at, count = row // self.rows_each, self.cross_key.shape[2]
        if self.cross_lengths is not None:
            count = self.cross_lengths[at]
        key, value = (numbers(x[at, group, :count]) for x in (self.cross_key, self.cross_value))
        return key, value


def attended(
    query: Array,
    keys: Array,
    values: Array,
    scale: float,
    bias: Array | None = None,
    softcap: float = 0.0,
    sink: float | None = None,
) -> Array:
    """One query [d] over keys and values [t, d], in float64."""
    scores = keys.astype(np.float64) @ query.astype(np.float64) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    beside = -np.inf if sink is None else sink
    most = max(scores.max(), beside)
    shares = np.exp(scores - most)
    mixed: Array = shares @ values.astype(np.float64) / (shares.sum() + np.exp(beside - most))
    return mixed


@dataclass(frozen=True, kw_only=True, repr=False)
class CrossCall(Brief):
    """A call over complete keys and values, which are NaN past their input's length."""

    query: Array  # [r, s, h, d]
    key: Array  # [b, h, t, line]
    value: Array
    lengths: Array | None
    bias: Array | None = None  # [r, h, s, t]
    scale: float = 0.3
    softcap: float = 0.0
    gap: int = 0

    def inputs(self, first: int, last: int) -> Self:
        each = len(self.query) // len(self.key)
        rows = slice(first * each, last * each)
        return replace(
            self,
            query=self.query[rows],
            key=self.key[first:last],
            value=self.value[first:last],
            lengths=None if self.lengths is None else self.lengths[first:last],
            bias=None if self.bias is None else self.bias[rows],
        )

    def run(self, threads: int, instructions: str) -> Array:
        rows, new, heads, head_dim = self.query.shape
        inputs, _, positions, _ = self.key.shape
        query = strided(self.query.reshape(rows * new, -1), heads * head_dim + self.gap)
        out = strided(np.full((rows * new, heads * head_dim), np.nan), heads * head_dim + self.gap)
        key, value = guarded(self.key), guarded(self.value)
        lengths = None if self.lengths is None else guarded(self.lengths)
        bias = None if self.bias is None else guarded(self.bias)
        words = [inputs, rows // inputs * new, heads, key.shape[1], head_dim, positions]
        words += [*_flat(query), *_heads(key), *_heads(value), _pointer(lengths)]
        words += [bits(self.scale), bits(self.softcap), *_bias(bias), new, *_flat(out)]
        run(machine(threads, instructions), Operation.CROSS_ATTENTION, words)
        return out.reshape(self.query.shape).copy()

    def expected(self) -> Array:
        rows, new, heads, _ = self.query.shape
        out = np.zeros(self.query.shape)
        for row, s, head in np.ndindex(rows, new, heads):
            of = row // (rows // len(self.key))
            length = self.key.shape[2] if self.lengths is None else self.lengths[of]
            bias = None if self.bias is None else self.bias[row, head, s, :length]
            g = head // (heads // self.key.shape[1])
            keys, values = (numbers(x[of, g, :length]) for x in (self.key, self.value))
            given = self.scale, bias, self.softcap
            out[row, s, head] = attended(self.query[row, s, head], keys, values, *given)
        return out


@dataclass(frozen=True, kw_only=True, repr=False)
class WholeCall(Brief):
    """A call without a cache; keys and values are NaN past their input's length."""

    query: Array  # [b, t, h, d]
    key: Array  # [b, t, g, d]
    value: Array
    lengths: Array | None
    bias: Array | None = None  # [b or 1, h, t, t]
    scale: float = 0.3
    softcap: float = 0.0
    window: int = 0
    angles: Array | None = None  # [t, d / 2]
    exact: bool = True
    gaps: tuple[int, int, int] = field(default=(0, 0, 0))

    def inputs(self, first: int, last: int) -> Self:
        bias = self.bias
        return replace(
            self,
            query=self.query[first:last],
            key=self.key[first:last],
            value=self.value[first:last],
            lengths=None if self.lengths is None else self.lengths[first:last],
            bias=bias if bias is None or len(bias) == 1 else bias[first:last],
        )

    def turned(self, x: Array) -> Array:
        if self.angles is None:
            return x
        cosines, sines = (f(self.angles)[:, None] for f in (np.cos, np.sin))
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cosines - b * sines, b * cosines + a * sines], -1)

    def run(self, threads: int, instructions: str) -> Array:
        inputs, positions, heads, head_dim = self.query.shape
        width, key_heads = heads * head_dim, self.key.shape[2]
        lines = [
            strided(x.reshape(inputs * positions, -1), x[0, 0].size + gap)
            for x, gap in zip((self.query, self.key, self.value), self.gaps, strict=True)
        ]
        tables = [] if self.angles is None else [np.cos(self.angles), np.sin(self.angles)]
        tables = [guarded(table) for table in tables]
        out = strided(np.full((inputs * positions, width), np.nan), width + self.gaps[0])
        lengths = None if self.lengths is None else guarded(self.lengths)
        bias = None if self.bias is None else guarded(self.bias)
        words = [inputs, positions, heads, key_heads, head_dim, self.window]
        words += [word for rows in lines for word in _flat(rows)]
        words += [_pointer(lengths), bits(self.scale), bits(self.softcap)]
        words += [*(map(_pointer, tables) if tables else (0, 0)), *_bias(bias)]
        words += [int(self.exact), *_flat(out)]
        run(machine(threads, instructions), Operation.WHOLE_ATTENTION, words)
        return out.reshape(self.query.shape).copy()

    def expected(self) -> Array:
        """Results for positions past an input's length are zeros."""
        inputs, positions, heads, _ = self.query.shape
        query, key = self.turned(self.query), self.turned(self.key)
        out = np.zeros(self.query.shape)
        for b, t, head in np.ndindex(inputs, positions, heads):
            length = positions if self.lengths is None else self.lengths[b]
            if t >= length:
                continue
            bias = None
            if self.bias is not None:
                bias = self.bias[b if len(self.bias) > 1 else 0, head, t, :length]
            g = head // (heads // self.key.shape[2])
            before, after = (self.window - 1) // 2, self.window // 2
            seen = slice(max(0, t - before), t + after + 1) if self.window else slice(None)
            keys, values = key[b, :length, g][seen], self.value[b, :length, g][seen]
            given = self.scale, bias if bias is None else bias[seen], self.softcap
            out[b, t, head] = attended(query[b, t, head], keys, values, *given)
        return out


def normal(rng: Generator, *shape: int) -> Array:
    drawn: Array = rng.standard_normal(shape).astype(np.float32)
    return drawn
