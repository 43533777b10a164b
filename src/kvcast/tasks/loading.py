"""From what a user calls a model to one that runs.

A bundle is opened as it is. Anything else is exported once into the cache folder, under a name
made of its content and the options, and found there the next time. Eager needs no bundle.
"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from kvcast import __version__
from kvcast.bundle.manifest import VERSION, Manifest, is_bundle, read_bundle
from kvcast.checkpoints.source import fingerprint, locate, open_checkpoint
from kvcast.errors import KvcastError, UsageError
from kvcast.runtimes.cores import available_cores
from kvcast.spec.paths import cache_dir
from kvcast.tasks.exporting import (
    QUANTIZE,
    check_choice,
    export_folder,
    require_export_extra,
)
from kvcast.tasks.families import family_of

if TYPE_CHECKING:
    from kvcast.tasks.generate import TextModel
    from kvcast.tasks.model import WhisperModel

Model: TypeAlias = "WhisperModel | TextModel"

RUNTIMES = ("onnx", "eager")
_DEFAULT_QUANTIZE = {"onnx": "int8", "eager": "none"}


def load(
    model: str | Path,
    *,
    runtime: str = "onnx",
    quantize: str | None = None,
    threads: int | None = None,
) -> Model:
    """Open a model, exporting it first where that was not done yet.

    A Whisper model transcribes, any other generates: the result's `task` says which.

    Args:
        model: a bundle, a checkpoint folder (Hugging Face, CTranslate2 or Mistral layout), a GGUF
            file, a hub id `org/name[@revision]`, or a packaged model: `demo`, `demo-chat`.
        runtime: "onnx" (no torch needed for a bundle) or "eager" (PyTorch).
        quantize: "none", "int8" or "int4"; by default what the bundle has, int8 for ONNX Runtime
            and none for eager.
        threads: of the runtime; by default the physical cores that this process may use.

    Raises:
        KvcastError: with one line, for anything that cannot be found, read, exported or run.

    """
    check_choice("runtime", runtime, RUNTIMES)
    if quantize is not None:
        check_choice("quantize", quantize, QUANTIZE)
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be 1 or more, not {threads}")
    workers = threads or available_cores()
    folder = locate(str(model))
    if is_bundle(folder):
        return _open_bundle(folder, read_bundle(folder), runtime, quantize, workers)
    chosen = quantize or _DEFAULT_QUANTIZE[runtime]
    if runtime == "eager":
        return _open_eager(folder, chosen, workers)
    bundle, manifest = _exported_once(folder, str(model), chosen)
    return _open_bundle(bundle, manifest, runtime, chosen, workers)


def _open_bundle(
    folder: Path, manifest: Manifest, runtime: str, quantize: str | None, threads: int
) -> Model:
    for option, asked, has in (
        ("--runtime", runtime, manifest.runtime),
        ("--quantize", quantize, manifest.quantize),
    ):
        if asked not in (None, has):
            raise UsageError(
                f"{folder} was exported with {option} {has}; drop {option} {asked} or export the "
                "checkpoint again"
            )
    family = family_of(manifest.family)
    # Text files lie beside the manifest, graphs in folders of their own.
    text = {name: (folder / name).read_bytes() for name in manifest.files if "/" not in name}
    dimensions = family.dimensions(manifest.dimensions)
    model: Model = family.model(family.onnx(folder, manifest, threads), dimensions, text)
    return model


def _open_eager(folder: Path, quantize: str, threads: int) -> Model:
    require_export_extra()
    import torch

    torch.set_num_threads(threads)
    checkpoint = open_checkpoint(folder)
    family = family_of(checkpoint.family)
    programs = family.programs(checkpoint)
    if quantize != "none":
        family.quantize_eager(programs, quantize)
    text = family.text_files(checkpoint)
    model: Model = family.model(family.eager(programs), checkpoint.dimensions, text)
    return model


def _exported_once(folder: Path, name: str, quantize: str) -> tuple[Path, Manifest]:
    key = "\n".join((fingerprint(folder), "onnx", quantize, str(VERSION), __version__))
    bundle = cache_dir() / "bundles" / hashlib.sha256(key.encode()).hexdigest()[:24]
    try:
        return bundle, read_bundle(bundle)
    except KvcastError:  # not there yet, or damaged: both are mended by exporting
        export_folder(folder, name, bundle, quantize=quantize, overwrite=True)
    return bundle, read_bundle(bundle)
