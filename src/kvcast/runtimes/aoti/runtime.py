"""Bundles of AOTInductor, of every interface: compiled programs where eager executes them.

A package holds native code, so it is opened only after the bundle's checksums were verified. All
its programs share one set of weights in memory. Caches belong to the caller, so several caches
share one package.

A decoder-only program writes a ring before it reads it, so a ring has spare slots, and a chunk that
would evict more is split.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.export.pt2_archive._package import load_pt2
from typing_extensions import override

from kvcast.bundle.manifest import Graph, Manifest
from kvcast.errors import KvcastError, LibraryMissingError
from kvcast.families.programs import CacheLayers
from kvcast.runtimes.aoti.packed import PackedWeights
from kvcast.runtimes.eager.runtime import (
    EagerPrefix,
    Model,
    TorchDecoderOnly,
    TorchEncoderDecoder,
    decode_neighbours,
    use_threads,
)
from kvcast.runtimes.memory import Layer, TurningRing, recurrent_layers
from kvcast.runtimes.opening import naming

_WEIGHTS = "weights.safetensors"
_SLOTS = "slots_"
_FEW_TOKENS = 16  # that decode's attention by sums is made for


class CompiledProgram:
    def __init__(
        self, loader: Any, path: Path, graph: Graph, device: str, packed: PackedWeights
    ) -> None:
        self._loader = loader
        self._packed = packed
        self._path = path
        self._device = device
        self._kinds = [
            name.removeprefix(_SLOTS) for name in graph.inputs if name.startswith(_SLOTS)
        ]
        # Caches are made where they are used; to look at all of them would take as long as a layer.
        self._brought = [
            i
            for i, name in enumerate(graph.inputs[len(self._kinds) :])
            if not name.startswith(("past_", "cross_"))
        ]
        self._slots = torch.empty(0, dtype=torch.int8, device=device)

    def __call__(self, inputs: Sequence[Tensor], slots: Mapping[str, int]) -> list[Tensor]:
        """Run on the device, where caches are, reading `slots` of each kind of self cache."""
        sizes = [self._slots_of(slots[kind]) for kind in self._kinds]
        given = list(inputs)
        for i in self._brought:
            given[i] = given[i].to(self._device)
        with naming(self._path):
            results: list[Tensor] = self._loader.run([*sizes, *given])
        return results

    def _slots_of(self, count: int) -> Tensor:
        slots = self._slots  # another thread may put a shorter one in its place
        if len(slots) < count:
            self._slots = slots = torch.empty(2 * count, dtype=torch.int8, device=self._device)
        return slots[:count]


class DecodeProgram:
    """`decode`, and its form `prefill` for many tokens, where their attention differs."""

    def __init__(self, programs: Mapping[str, CompiledProgram]) -> None:
        self._step = programs["decode"]
        self._prefill = programs.get("prefill", self._step)

    def __call__(self, inputs: Sequence[Tensor], slots: Mapping[str, int]) -> list[Tensor]:
        """Run; tokens are the first input. Results are on the CPU."""
        program = self._step if inputs[0].numel() <= _FEW_TOKENS else self._prefill
        return [result.cpu() for result in program(inputs, slots)]


def open_programs(folder: Path, manifest: Manifest, threads: int) -> dict[str, CompiledProgram]:
    """Load a verified bundle's programs, which share one set of weights.

    Raises KvcastError for a package that does not fit this machine or its weights.
    """
    if manifest.device == "cuda" and not torch.cuda.is_available():
        raise KvcastError(
            f"{folder} was compiled for a CUDA device, and there is none here: export it again "
            "with --device cpu"
        )
    use_threads(threads)
    files = {graph.file for graph in manifest.graphs.values()}
    weights_name = Path(min(files)).with_name(_WEIGHTS).as_posix()
    if len(files) != 1 or weights_name not in manifest.files:
        raise KvcastError(f"{folder} has no {weights_name} with a checksum; export it again")
    path = folder / min(files)
    with naming(folder / weights_name):
        mapped = load_file(folder / weights_name)
    with _loading(path):
        package = load_pt2(str(path)).aoti_runners
        constants = {program: runner.get_constant_fqns() for program, runner in package.items()}
        packed = PackedWeights(mapped, chain.from_iterable(constants.values()), threads)
        weights = dict(packed.words)
        for program, runner in package.items():
            # A program's own constants, which have no names, are under its name.
            stored = {
                name: name if name in mapped or name in weights else f"{program}/{name}"
                for name in constants[program]
            }
            for name in stored.values():
                if name not in weights:
                    weights[name] = in_torchs_memory(mapped[name], manifest.device)
            own = {name: weights[there] for name, there in stored.items()}
            runner.load_constants(own, check_full_update=True, user_managed=True)
        return {
            name: CompiledProgram(package[name].loader, path, graph, manifest.device, packed)
            for name, graph in manifest.graphs.items()
        }


@contextmanager
def _loading(path: Path) -> Iterator[None]:
    try:
        yield
    except LibraryMissingError as error:
        raise LibraryMissingError(f"{path} needs kvcast's kernels: {error}") from None
    except Exception as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise KvcastError(
            f"{path} cannot be loaded here ({said}); export it again on this machine"
        ) from error


def in_torchs_memory(mapped: Tensor, device: str) -> Tensor:
    """Copy a mapped tensor to `device`, as kernels may need it aligned."""
    return mapped.to(device, copy=True)


class AotiEncoderDecoder(TorchEncoderDecoder):
    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        programs = open_programs(folder, manifest, threads)
        self._encode, self._decode = programs["encode"], DecodeProgram(programs)
        self._own = manifest.cache_layers("linear")
        self.longest = self._own.capacity
        self.device = manifest.device
        self.alignment_heads = manifest.dimensions.get("alignment_heads", ())

    @override
    def layers(self, capacity: int) -> Sequence[Layer]:
        shape = (self._own.heads, capacity, self._own.head_dim)
        return [Layer(shape, getattr(torch, self._own.dtype))] * (2 * self._own.layers)

    @override
    def encode_source(self, *source: Tensor) -> Sequence[Tensor]:
        return self._encode(source, {})

    @override
    def decode_tokens(
        self,
        tokens_rs: Tensor,
        lengths: Tensor,
        offsets: Tensor,
        own: Sequence[Tensor],
        encoded: Sequence[Tensor],
    ) -> Sequence[Tensor]:
        held = int(lengths.max()) + tokens_rs.shape[1]
        inputs = [tokens_rs, lengths, offsets, *own, *encoded]
        return self._decode(inputs, {"linear": held})


# A ring takes a chunk of one position more than its spare slots.
_SPARE = 127


@dataclass(frozen=True)
class Rings:
    layers: Sequence[CacheLayers]

    @property
    def window(self) -> int:
        return max((layer.capacity for layer in self.layers if layer.kind == "ring"), default=0)

    def of(self, capacity: int) -> list[Layer]:
        """Describe caches [rows, kv_heads, slots, d]; all rings of attention are alike."""
        return [part for layer in self.layers for part in self._parts(layer, capacity)]

    def _parts(self, layer: CacheLayers, capacity: int) -> list[Layer]:
        if parts := recurrent_layers(layer, torch.float32):
            return parts
        slots = {"linear": capacity, "ring": min(self.window + _SPARE, capacity)}
        shape = layer.heads, slots[layer.kind], layer.head_dim
        ring = TurningRing(layer.capacity, slots["ring"]) if layer.kind == "ring" else None
        return [Layer(shape, getattr(torch, layer.dtype), ring)] * len(layer.parts)


class RowsProgram:
    def __init__(self, program: DecodeProgram, rings: Rings) -> None:
        self._program = program
        self._kinds = [layer.kind for layer in rings.layers for _ in layer.parts]
        self._window = rings.window

    def __call__(
        self, tokens_rs: Tensor, lengths: Tensor, offsets: Tensor, *caches: Tensor
    ) -> list[Tensor]:
        """Return the program's results at `offsets`, each [rows, len(offsets), ...]."""
        kinds = zip(self._kinds, caches, strict=True)
        capacities = {kind: cache.shape[2] for kind, cache in kinds}
        pieces, places = [], []
        for span in self._pieces(tokens_rs.shape[1], int(lengths.max()), capacities.get("ring")):
            place = ((offsets >= span.start) & (offsets < span.stop)).nonzero().flatten()
            held = int(lengths.max()) + span.stop
            slots = {kind: min(held, capacity) for kind, capacity in capacities.items()}
            inputs = [tokens_rs[:, span].contiguous(), lengths + span.start]
            inputs += [offsets[place] - span.start, *caches]
            pieces.append(self._program(inputs, slots))
            places.append(place)
        if len(pieces) == 1:
            return pieces[0]
        order = torch.cat(places).argsort()
        return [torch.cat(parts, dim=1)[:, order] for parts in zip(*pieces, strict=True)]

    def _pieces(self, new: int, held: int, ring: int | None) -> Iterator[slice]:
        """Split new positions so that none evicts one that a query of its piece sees."""
        first = 0
        while first < new:
            size = new - first
            if ring is not None:
                size = min(size, max(ring - held - first, ring - self._window + 1))
            yield slice(first, first + size)
            first += size


class AotiDecoderOnly(TorchDecoderOnly):
    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        self._rings = Rings(manifest.cache)
        self.device = manifest.device
        decode = DecodeProgram(open_programs(folder, manifest, threads))
        self._decode = RowsProgram(decode, self._rings)

    @override
    def layers(self, capacity: int) -> Sequence[Layer]:
        return self._rings.of(capacity)

    @override
    def decode_packed(self, *arguments: Any) -> Tensor:
        return decode_neighbours(self._decode, *arguments)


class _CompiledModel(Model):
    def __init__(
        self, dimensions: Any, programs: Mapping[str, Callable[..., Sequence[Tensor]]]
    ) -> None:
        self._dimensions = dimensions
        self._programs = programs

    @property
    @override
    def dimensions(self) -> Any:
        return self._dimensions

    @override
    def __getitem__(self, name: str) -> Callable[..., Sequence[Tensor]]:
        return self._programs[name]


def _pool(program: CompiledProgram, hidden_nx: Tensor) -> Sequence[Tensor]:
    return [result.cpu() for result in program([hidden_nx], {})]


class AotiPrefix(EagerPrefix):
    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        self._rings = Rings(manifest.cache)
        self.device = manifest.device
        compiled = open_programs(folder, manifest, threads)
        programs: dict[str, Any] = {"decode": RowsProgram(DecodeProgram(compiled), self._rings)}
        if "pool" in compiled:
            programs["pool"] = partial(_pool, compiled["pool"])
        super().__init__(_CompiledModel(SimpleNamespace(**manifest.dimensions), programs))

    @override
    def layers(self, capacity: int) -> Sequence[Layer]:
        return self._rings.of(capacity)
