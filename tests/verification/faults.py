"""Sound models, and ways to break each so that only its numbers are wrong.

Files are sealed again: their checksums agree, they open, and every shape fits. Behaviour is broken
by a runtime around a sound one. Knows no check: tests say what each fault must be reported as.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from torch import Tensor

from kit.dimensions import DSA, KIMI, LLAMA, MISTRAL, QWEN3_5, SMALL, SMALL_T5, YOUTU
from kit.models import bundle, once, random_tensors, write
from kvcast.bundle.manifest import MANIFEST, Manifest
from kvcast.bundle.writing import seal
from kvcast.models.executor import TorchModel
from kvcast.models.ops import latents
from kvcast.spec.program import LatentAttention, Node, Program, Step

Arrays = dict[str, NDArray[Any]]
Break = Callable[[Path], None]
"""Changes files of a bundle, in place."""


@dataclass(frozen=True)
class FileFault:
    """A bundle that is wrong.

    Attributes:
        dimensions: of the model.
        precision: of the bundle, and its runtime.
        change: breaks a copy of the sound bundle.
        place: words that name the culprit.

    """

    dimensions: Any
    precision: Mapping[str, str]
    change: Break
    place: Sequence[str]

    def sound(self) -> Path:
        """Return the twin that is not broken; nobody may change it."""
        return bundle(self.dimensions, **self.precision)

    def broken(self, folder: Path) -> Path:
        """Write the broken bundle into a new folder, and return that."""
        shutil.copytree(self.sound(), folder)
        self.change(folder)
        return reseal(folder)


def reseal(folder: Path) -> Path:
    """Give the files of a bundle, as they are now, checksums that agree."""
    seal(folder, Manifest.from_json((folder / MANIFEST).read_text(encoding="utf-8")))
    return folder


@contextmanager
def _weights(folder: Path) -> Iterator[Arrays]:
    """Yield the arrays of the weights' file, and write it as they are left."""
    path = folder / "native" / "weights.safetensors"
    arrays = {name: array.copy() for name, array in load_file(path).items()}
    yield arrays
    save_file(arrays, path)


@contextmanager
def _graph_weights(folder: Path) -> Iterator[Arrays]:
    """Yield the arrays in the data file of an ONNX graph, and write it as they are left."""
    tensors = {
        name: value.const_value
        for name, value in ir.load(folder / "onnx" / "decode.onnx").graph.initializers.items()
        if isinstance(value.const_value, ir.ExternalTensor)
    }
    (path,) = {folder / "onnx" / tensor.location for tensor in tensors.values()}
    data = np.fromfile(path, np.uint8)
    yield {
        name: data[tensor.offset :][: tensor.nbytes]
        .view(tensor.dtype.numpy())
        .reshape(tensor.shape.numpy())
        for name, tensor in tensors.items()
    }
    path.write_bytes(data.tobytes())


_FILES = {"native": _weights, "onnx": _graph_weights}


def flipped_bit(name: str, index: tuple[int, ...], bit: int, runtime: str = "native") -> Break:
    """Flip one bit of one number: of a float, bit 30 is the highest of the exponent."""

    def change(folder: Path) -> None:
        with _FILES[runtime](folder) as arrays:
            words = arrays[name].view(f"u{arrays[name].itemsize}")
            words[index] ^= words.dtype.type(1 << bit)

    return change


def other_channels_scale(name: str, one: int, other: int, runtime: str = "native") -> Break:
    """Let two outputs of a quantised matrix have each other's scales."""

    def change(folder: Path) -> None:
        with _FILES[runtime](folder) as arrays:
            scales = arrays[f"{name}.scales"]
            scales[[one, other]] = scales[[other, one]]

    return change


def wrong_rotary_base(base: float) -> Break:
    """Rotate by the angles of another base."""

    def change(folder: Path) -> None:
        with _weights(folder) as arrays:
            positions, pairs = arrays["cosines_0"].shape
            turns_d = base ** -(np.arange(pairs) / pairs)
            angles_td = np.outer(np.arange(positions), turns_d)
            arrays["cosines_0"] = np.cos(angles_td).astype(np.float32)
            arrays["sines_0"] = np.sin(angles_td).astype(np.float32)

    return change


def angles_twice(folder: Path) -> None:
    """Rotate by twice the angles."""
    with _weights(folder) as arrays:
        cosines, sines = arrays["cosines_0"], arrays["sines_0"]
        arrays["cosines_0"], arrays["sines_0"] = cosines**2 - sines**2, 2 * cosines * sines


def next_ones(name: str) -> Break:
    """Let each number of a tensor be the one before it."""

    def change(folder: Path) -> None:
        with _weights(folder) as arrays:
            arrays[name] = np.roll(arrays[name], 1)

    return change


def wrong_bias_row(stack: str) -> Break:
    """Let each distance have the bias of the next."""

    def change(folder: Path) -> None:
        with _weights(folder) as arrays:
            table_hd = arrays[f"{stack}.bias_by_distance"]
            arrays[f"{stack}.bias_by_distance"] = np.roll(table_hd, 1, axis=1)

    return change


def other_window(layer: int, more: int) -> Break:
    """Let a layer see other positions than its window, in the program alone."""

    def change(folder: Path) -> None:
        path = folder / "native" / "decode.json"
        program, seen = Program.read(path), 0
        steps = list(program.steps)
        for i, step in enumerate(steps):
            if step.operation == "self_attention":
                if seen == layer:
                    arguments = list(step.arguments)
                    arguments[_WINDOW] += more
                    steps[i] = replace(step, arguments=arguments)
                seen += 1
        path.unlink()
        replace(program, steps=steps).write(path)

    return change


def _other_steps(change: Callable[[list[Step]], list[Step]]) -> Break:
    """Change the operations of `decode`."""

    def break_program(folder: Path) -> None:
        path = folder / "native" / "decode.json"
        program = Program.read(path)
        path.unlink()
        replace(program, steps=change(list(program.steps))).write(path)

    return break_program


def _of(steps: Sequence[Step], operation: str) -> list[int]:
    return [i for i, step in enumerate(steps) if step.operation == operation]


def latents_without_norm(steps: list[Step]) -> list[Step]:
    """Let a layer's latents be what comes before their norm."""
    place = _of(steps, "latent_attention")[1]
    call = LatentAttention[Any](*steps[place].arguments)
    norm = next(step for step in steps if step.name == call.latent.name)
    arguments = [*call._replace(latent=norm.arguments[0])[: len(steps[place].arguments)]]
    steps[place] = replace(steps[place], arguments=arguments)
    return steps


def choice_of_another_layer(steps: list[Step]) -> list[Step]:
    """Let the last layer read the positions that the first one chose."""
    place, first = _of(steps, "latent_attention")[-1], steps[_of(steps, "select_positions")[0]]
    keywords = {**steps[place].keywords, "selected": Node(first.name)}
    steps[place] = replace(steps[place], keywords=keywords)
    return steps


_WINDOW = 7
"""Among the arguments of the operation `self_attention`."""
_DOWN = "decoder.layers.1.feed_forward.down.weight"
_OUT = "decoder.layers.1.attention.out.weight"
_QKV = "decoder.layers.0.attention.qkv.weight"
_STEP_BIAS = "decoder.layers.2.delta.step_bias"
_EXACT = {"runtime": "native"}
_INT8 = {"runtime": "native", "quantize": "int8"}
_ONNX_INT8 = {"runtime": "onnx", "quantize": "int8"}
_WHISPER_OUT = "decoder.layers.1.self_attention.out.weight"
_WHISPER_QKV = "decoder.layers.1.self_attention.qkv.weight"

FILE_FAULTS: Mapping[str, FileFault] = {
    "flipped bit in a float": FileFault(
        LLAMA, _EXACT, flipped_bit(_DOWN, (3, 5), 29), (_DOWN, "bit 29 is flipped")
    ),
    "flipped bit of a graph": FileFault(
        LLAMA,
        {"runtime": "onnx"},
        flipped_bit(f"{_DOWN}.transposed", (1, 13), 28, "onnx"),
        (_DOWN, "bit 28 is flipped"),
    ),
    "flipped bit in a code": FileFault(
        LLAMA,
        _INT8,
        flipped_bit(f"{_OUT}.codes", (7, 11), 7),
        (_OUT, "bit 7 of its code is flipped"),
    ),
    "another channel's scale": FileFault(
        SMALL,
        _INT8,
        other_channels_scale(_WHISPER_QKV, 5, 9),
        (_WHISPER_QKV, "output 5 has another scale, that of output 9"),
    ),
    "flipped bit in a graph's code": FileFault(
        SMALL,
        _ONNX_INT8,
        flipped_bit(f"{_WHISPER_OUT}.codes", (7, 11), 7, "onnx"),
        (_WHISPER_OUT, "at [11, 7]", "bit 7 of its code is flipped"),
    ),
    "another channel's scale in a graph": FileFault(
        SMALL,
        _ONNX_INT8,
        other_channels_scale(_WHISPER_QKV, 5, 9, "onnx"),
        (_WHISPER_QKV, "output 5 has another scale, that of output 9"),
    ),
    "wrong rotary base": FileFault(LLAMA, _EXACT, wrong_rotary_base(1000.0), ("rotary", "1000")),
    "window too short": FileFault(MISTRAL, _EXACT, other_window(1, -1), ("layer 1", "window")),
    "a latent without norm": FileFault(
        YOUTU, _EXACT, _other_steps(latents_without_norm), ("layer 1",)
    ),
    "a key part rotated twice": FileFault(YOUTU, _EXACT, angles_twice, ("sines_0",)),
    "an index of another layer": FileFault(
        DSA, _EXACT, _other_steps(choice_of_another_layer), ("layer 3",)
    ),
    "decays of other channels": FileFault(KIMI, _EXACT, next_ones(_STEP_BIAS), (_STEP_BIAS,)),
    "wrong bias row": FileFault(
        SMALL_T5, _EXACT, wrong_bias_row("decoder"), ("decoder.bias_by_distance", "shifted by 1")
    ),
}


def overflowing_tensors() -> Arrays:
    """Return weights whose values of layer 1 exceed what fp16 holds; in fp32 they are sound.

    Its product divides by what the values are multiplied by.
    """
    tensors, factor = random_tensors(LLAMA), np.float32(2.0**20)
    values = slice(-LLAMA.kv_heads * LLAMA.head_dim, None)
    tensors["decoder.layers.1.attention.qkv.weight"][values] *= factor
    tensors["decoder.layers.1.attention.out.weight"] /= factor
    return tensors


def overflowing(cache: str) -> Path:
    """Return a bundle of these weights with caches of a precision; nobody may change it."""

    def make(folder: Path) -> None:
        programs = TorchModel.from_tensors(LLAMA, overflowing_tensors())
        write(programs, folder, runtime="native", cache=cache)

    return once(f"overflowing-{cache}", make)


class Around:
    """A runtime that does what another does."""

    def __init__(self, runtime: Any) -> None:
        self.inner = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class KeepsEarlierInput(Around):
    """The second input of a slot is not encoded: its cross cache stays what it was.

    Of a cache, or of all caches of a load, as where a graph has the cross cache in itself.
    """

    def __init__(self, runtime: Any, *, of_load: bool = False) -> None:
        super().__init__(runtime)
        self._of_load = of_load
        self._first: WeakKeyDictionary[Any, dict[int, Any]] = WeakKeyDictionary()

    def encode(self, cache: Any, slots: Sequence[int], *source: NDArray[Any]) -> Any:
        first = self._first.setdefault(self if self._of_load else cache.memory, {})
        for i, slot in enumerate(slots):
            one = tuple(part[i : i + 1].copy() for part in source)
            cache = self.inner.encode(cache, [slot], *first.setdefault(slot, one))
        return cache


class SwapsBeams(Around):
    """The first two rows that continue different parents continue each other's."""

    def reorder(self, cache: Any, parents: Sequence[int]) -> Any:
        swapped = list(parents)
        other = next((i for i, parent in enumerate(swapped) if parent != swapped[0]), 0)
        swapped[0], swapped[other] = swapped[other], swapped[0]
        return self.inner.reorder(cache, swapped)


class DropsKeys(Around):
    """The keys of one layer are not written."""

    def __init__(self, runtime: Any, layer: int) -> None:
        super().__init__(runtime)
        self._layer = layer

    def _without_keys(self, compute: Any, cache: Any, call: Any) -> Any:
        keys = cache.memory.cells[2 * self._layer]
        before, places = keys + 0, list(cache.memory.places)
        logits, grown = compute(*call)
        if cache.memory.places == places:  # keys of rows that were moved lie elsewhere
            for row, place in enumerate(places):
                new = slice(int(cache.lengths[row]), int(grown.lengths[row]))
                keys[place, :, new] = before[place, :, new]
        return logits, grown

    def decode(self, tokens: Any, cache: Any, *call: Any, **named: Any) -> Any:
        def compute() -> Any:
            return self.inner.decode(tokens, cache, *call, **named)

        return self._without_keys(compute, cache, ())

    def prefill(self, tokens: Any, cache: Any, *call: Any, **named: Any) -> Any:
        def compute() -> Any:
            return self.inner.prefill(tokens, cache, *call, **named)

        return self._without_keys(compute, cache, ())


class AdoptsNothing(Around):
    """A row that adopts a prefix has its length, and what the row held before."""

    def adopt(self, cache: Any, rows: Sequence[int], other: Any, parents: Sequence[int]) -> Any:
        held = [cell + 0 for cell in cache.memory.cells]
        adopted = self.inner.adopt(cache, rows, other, parents)
        for cell, before in zip(cache.memory.cells, held, strict=True):
            for row in rows:
                place = cache.memory.places[row]
                cell[place] = before[place]
        return adopted

    def fork(self, cache: Any, parents: Sequence[int], capacity: int | None = None) -> Any:
        forked = self.inner.new_cache(len(parents), capacity or cache.capacity)
        return self.adopt(forked, range(len(parents)), cache, parents)


class AdoptsNeighbour(Around):
    """A row that adopts a prefix gets that of the row beside it."""

    def adopt(self, cache: Any, rows: Sequence[int], other: Any, parents: Sequence[int]) -> Any:
        beside = [(parent + 1) % len(other.lengths) for parent in parents]
        return self.inner.adopt(cache, rows, other, beside)

    def fork(self, cache: Any, parents: Sequence[int], capacity: int | None = None) -> Any:
        beside = [(parent + 1) % len(cache.lengths) for parent in parents]
        return self.inner.fork(cache, beside, capacity)


class LeavesState(Around):
    """A row that is cut back keeps what its states and last inputs became."""

    def truncate(self, cache: Any, rows: Sequence[int], lengths: Sequence[int]) -> Any:
        cut = self.inner.truncate(cache, rows, lengths)
        return replace(cut, snapshots=replace(cut.snapshots, pending={}))


@dataclass(frozen=True)
class BehaviourFault:
    """A runtime that does one thing wrong with its cache.

    Attributes:
        dimensions: of the model.
        around: makes the runtime from a sound one.

    """

    dimensions: Any
    around: Callable[[Any], Any]


class BreaksTies(Around):
    """In a chunk the last of equal scores are chosen, in a step the first."""

    def prefill(self, *call: Any, **named: Any) -> Any:
        return self._compute(self.inner.prefill, *call, **named)

    def decode(self, *call: Any, **named: Any) -> Any:
        return self._compute(self.inner.decode, *call, **named)

    def _compute(self, method: Any, tokens: Any, *call: Any, **named: Any) -> Any:
        if max(map(len, tokens)) == 1:
            return method(tokens, *call, **named)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(latents, "highest", _last_of_equal_first)
            return method(tokens, *call, **named)


def _last_of_equal_first(scores: Tensor, count: int) -> Tensor:
    places = scores.flip(-1).sort(dim=-1, descending=True, stable=True)[1]
    return scores.shape[-1] - 1 - places[..., :count]


BEHAVIOUR_FAULTS: Mapping[str, BehaviourFault] = {
    "cross cache not reset": BehaviourFault(SMALL, KeepsEarlierInput),
    "cross cache of another load": BehaviourFault(SMALL, partial(KeepsEarlierInput, of_load=True)),
    "swapped beams": BehaviourFault(LLAMA, SwapsBeams),
    "one layer's key missing": BehaviourFault(LLAMA, partial(DropsKeys, layer=1)),
    "a stale prefix": BehaviourFault(LLAMA, AdoptsNothing),
    "another row's prefix": BehaviourFault(LLAMA, AdoptsNeighbour),
    "a state not cut back": BehaviourFault(QWEN3_5, LeavesState),
}
