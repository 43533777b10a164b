"""Random models of each family: weights, inputs, bundles on any runtime, and how to drive them.

For proving that two computations agree. The first worker that needs a bundle exports it, once per
run or in all of CI, without the proof of `kvcast.export_bundle`: the tests are the proof.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from filelock import FileLock
from numpy.typing import NDArray

from kit.dimensions import SMALL
from kvcast.bundle.manifest import Manifest, read_bundle
from kvcast.bundle.packages import describe_packages
from kvcast.bundle.writing import seal, stage
from kvcast.checkpoints.base import Checkpoint, LazyTensors, StoredTensor, tensor_from_bytes
from kvcast.checkpoints.source import locate
from kvcast.families.table import family_with
from kvcast.loading import export_proof
from kvcast.loading.opening import export_once
from kvcast.loading.params import LoadParams
from kvcast.models.executor import TorchModel
from kvcast.runtimes.base import EncoderDecoder, Float32, Int64
from kvcast.runtimes.onnx import lowering as onnx_lowering
from kvcast.runtimes.reference import EagerReference
from kvcast.runtimes.target import TARGETS, BuildOptions, LoweringJob
from kvcast.spec.runtimes import BundlePrecision


def family_name(dimensions: Any) -> str:
    """Return the name of the family that has such dimensions."""
    return family_with(dimensions).name


_AROUND_1 = ("norm.weight", ".scale", ".scales")


def random_tensors(dimensions: Any, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Weights large enough that every part of the model moves the logits; each name has its own."""
    tensors = {}
    for name, shape in family_with(dimensions).tensor_shapes(dimensions).items():
        generator = np.random.default_rng([seed, crc32(name.encode())])
        tensors[name] = generator.normal(name.endswith(_AROUND_1), 0.2, shape).astype(np.float32)
    # In a T5 distances matter as much as contents.
    return {name: 5 * part if ".bias." in name else part for name, part in tensors.items()}


def random_programs(dimensions: Any, seed: int = 0) -> TorchModel:
    """Return the programs of a model with random weights."""
    return TorchModel.from_tensors(dimensions, random_tensors(dimensions, seed))


@dataclass(frozen=True)
class Subject:
    """A runtime, and a function that makes its sources from a batch size and a seed."""

    dimensions: Any
    runtime: EncoderDecoder
    source: Callable[[int, int], tuple[NDArray[Any], ...]]


def speech(batch: int, seed: int) -> tuple[NDArray[Any], ...]:
    """Features [batch, mels, frames] for `SMALL`."""
    generator = np.random.default_rng(seed)
    return (generator.normal(size=(batch, 80, 50)).astype(np.float32),)


def text(batch: int, seed: int) -> tuple[NDArray[Any], ...]:
    """Tokens [batch, t] for `SMALL_T5`, and lengths [batch] of which one is t."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 40, batch).astype(np.int32)
    return generator.integers(0, 300, (batch, lengths.max())), lengths


# Metadata in files for C++ callers; random models give tokens no meaning.
SPECIAL_TOKENS = {
    "start_tokens": [3, 1, 4],
    "end_tokens": [7, 9],
    "language_tokens": [],
    "suppressed_tokens": [5, 6, 11],
    "blank_tokens": [8, 7],
}
NEEDED = {
    "aoti": ("torch", "AOTInductor needs torch: pip install 'kvcast[export]'"),
    "executorch": ("executorch", "ExecuTorch is not installed: pip install executorch==1.5.1"),
}
_folders: list[Path] = []


def share(folder: Path) -> None:
    """Set the folder that all workers of this run can write to."""
    _folders[:] = [folder]


def once(name: str, make: Callable[[Path], object]) -> Path:
    """Return the output of `make`, from this worker or another; a failure leaves nothing."""
    path = _folders[0] / f"shared-{name}"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            make(path)
    return path


def bundle(
    dimensions: Any,
    quantize: str = "none",
    runtime: str = "onnx",
    *,
    dtype: str = "fp32",
    cache: str = "fp32",
) -> Path:
    """Return the bundle of the random model of these dimensions; it must not be changed."""
    precision = {"quantize": quantize, "dtype": dtype, "cache": cache}
    key = sha256(repr((dimensions, runtime, precision)).encode()).hexdigest()[:16]

    def make(folder: Path) -> None:
        write(random_programs(dimensions), folder, runtime=runtime, **precision)

    return once(f"{runtime}-{quantize}-{key}", make)


def lazy_tensors(arrays: Mapping[str, NDArray[np.float32]]) -> LazyTensors:
    """Return arrays as lazy tensors, as a reader of files does."""

    def stored(array: NDArray[np.float32]) -> StoredTensor:
        raw = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        return tensor_from_bytes(raw, "float32", array.shape, "a tensor")

    return LazyTensors({name: [stored(array)] for name, array in arrays.items()})


def tensors_of(programs: TorchModel) -> dict[str, NDArray[Any]]:
    """Return the weights of programs by their canonical names."""
    names = family_with(programs.dimensions).tensor_shapes(programs.dimensions)
    return {name: programs.weights[name].numpy() for name in names}


def checkpoint_of(programs: TorchModel) -> Checkpoint:
    """Return a checkpoint with the weights of programs."""
    tensors = lazy_tensors(tensors_of(programs))
    return Checkpoint(dimensions=programs.dimensions, tensors=tensors, text={}, source="random")


def whole_logits(programs: TorchModel, source: Int64, target: Int64) -> Float32:
    """Logits [source + target, vocab] of a prefix model, whose source is given."""
    return export_proof.whole_logits(EagerReference(programs), source, target)


def write(
    programs: Any,
    folder: Path,
    quantize: str = "none",
    runtime: str = "onnx",
    *,
    dtype: str = "fp32",
    cache: str = "fp32",
) -> Manifest:
    """Lower programs with weights of a test's own, and seal."""
    if runtime in NEEDED:
        module, reason = NEEDED[runtime]
        pytest.importorskip(module, reason=reason)
    family = family_name(programs.dimensions)
    job = LoweringJob(
        checkpoint=checkpoint_of(programs),
        programs=lambda: programs,
        precision=BundlePrecision(quantize=quantize, dtype=dtype, cache=cache),
        build=BuildOptions(),
        special_tokens=SPECIAL_TOKENS,
    )
    with stage(folder, overwrite=False) as staging:
        graphs, layers = TARGETS[runtime].lower(job, staging)
        manifest = Manifest(
            family=family,
            runtime=runtime,
            quantize=quantize,
            dtype=dtype,
            dimensions=asdict(programs.dimensions),
            cache=layers,
            graphs=graphs,
            source={},
            tools={},
        )
        describe_packages(staging, manifest)
        return seal(staging, manifest)


def int8_cross_caches() -> Path:
    """Return SMALL's bundle with only the cross-attention caches in int8; it must not be changed.

    Rounded GEMMs would hide errors of caches.
    """

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(onnx_lowering, "quantized", lambda *_, **__: {})
            write(random_programs(SMALL), folder, "int8")

    return once("onnx-int8-cross-caches", make)


def exported(model: str, runtime: str = "onnx", **precision: str) -> Path:
    """Return a packaged model's bundle, which `kvcast.load` opens; it must not be changed.

    Raises InputMissingError if the model is not installed.
    """
    params = LoadParams(runtime=runtime, **precision)
    folder, _ = export_once(locate(model), model, params, None)
    return folder


def open_folder(folder: Path) -> Any:
    """Open a bundle on its runtime, with one thread."""
    manifest = read_bundle(folder)
    return TARGETS[manifest.runtime].open(manifest.family, folder, manifest, 1)


@cache
def opened(dimensions: Any, quantize: str = "none", runtime: str = "onnx", **precision: str) -> Any:
    """Return the random model of these dimensions on a runtime: a bundle's, or eager."""
    if runtime == "eager":
        from kvcast.runtimes.eager.runtime import eager_runtime

        return eager_runtime(random_programs(dimensions))
    return open_folder(bundle(dimensions, quantize, runtime, **precision))


VOCAB = 300

Source = tuple[NDArray[Any], ...]


def random_tokens(rows: int, new: int, seed: int) -> Int64:
    """Tokens [rows, new]."""
    return np.random.default_rng(seed).integers(0, VOCAB, (rows, new))


def input_at(source: Source, index: int) -> Source:
    """One input of several, as long as the longest."""
    return tuple(part[index : index + 1] for part in source)


def encoded(
    runtime: EncoderDecoder, source: Source, rows: int | None = None, capacity: int = 32
) -> Any:
    """A cache whose row r reads input r // (rows // inputs); by default one row per input."""
    count = len(source[0])
    rows = rows or count
    cache = runtime.new_cache(rows, capacity, inputs=count)
    cache = runtime.encode(cache, range(count), *source)
    return runtime.reset(cache, range(rows), [row * count // rows for row in range(rows)])


def whole(
    runtime: EncoderDecoder, source: Source, tokens: Sequence[Int64], rows: int | None = None
) -> Float32:
    """Logits [rows, s, vocab] of all tokens given at once."""
    cache = encoded(runtime, source, rows or len(tokens))
    logits, _ = runtime.decode(list(tokens), cache, positions=range(len(tokens[0])))
    return logits.copy()


def stepped(
    runtime: EncoderDecoder, cache: Any, tokens_rs: Int64, rows: Sequence[int] | None = None
) -> tuple[Float32, Any]:
    """Logits [rows, s, vocab] of one token after the other, and the cache."""
    logits = []
    for tokens_r1 in np.split(tokens_rs, tokens_rs.shape[1], axis=1):
        step, cache = runtime.decode(list(tokens_r1), cache, rows)
        logits.append(step.copy())
    return np.concatenate(logits, axis=1), cache


def in_chunks(
    runtime: EncoderDecoder, cache: Any, tokens_rs: Int64, chunks: Sequence[int]
) -> Float32:
    """Logits [rows, s, vocab], with as many tokens a call as `chunks` says."""
    parts = []
    for chunk in np.split(tokens_rs, np.cumsum(chunks)[:-1], axis=1):
        logits, cache = runtime.decode(list(chunk), cache, positions=range(chunk.shape[1]))
        parts.append(logits.copy())
    return np.concatenate(parts, axis=1)


def own_cache(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Make `folder` the cache; return it. Compiling takes as long as a hundred tests."""
    compiled = Path(os.environ["KVCAST_CACHE"]).resolve() / "native"
    compiled.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "native").symlink_to(compiled)
    monkeypatch.setenv("KVCAST_CACHE", str(folder))
    return folder
