"""Checkpoint to bundle: lower, prove, seal.

torch is imported inside the functions: only whoever exports needs it.
"""

from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

from kvcast.bundle.manifest import Manifest
from kvcast.bundle.writing import seal, staged
from kvcast.checkpoints.source import locate, open_checkpoint
from kvcast.errors import KvcastError, UsageError
from kvcast.tasks.families import family_of

QUANTIZE = ("none", "int8", "int4")
CACHES = ("fp32", "int8")
EXPORT_RUNTIMES = ("onnx",)


def export_bundle(
    model: str | Path,
    output: str | Path,
    *,
    runtime: str = "onnx",
    quantize: str = "int8",
    cache: str = "fp32",
    overwrite: bool = False,
) -> Path:
    """Export a checkpoint to a bundle folder and return it.

    The bundle is run against the same weights without a cache before it appears; what came out
    is in its manifest under `verification`.

    Args:
        model: a checkpoint folder, a hub id `org/name[@revision]`, or a packaged model's name.
        output: the bundle's folder; an existing one is replaced only with `overwrite`.
        runtime: "onnx".
        quantize: "none" (fp32), "int8" or "int4".
        cache: numbers of the self caches, "fp32" or "int8" (not for Whisper).
        overwrite: replace an existing bundle.

    Raises:
        KvcastError: with one line, for anything that cannot be read, exported or written.

    """
    check_choice("runtime", runtime, EXPORT_RUNTIMES)
    check_choice("quantize", quantize, QUANTIZE)
    check_choice("cache", cache, CACHES)
    return export_folder(
        locate(str(model)),
        str(model),
        Path(output),
        quantize=quantize,
        cache=cache,
        overwrite=overwrite,
    )


def export_folder(
    source: Path, name: str, output: Path, *, quantize: str, cache: str, overwrite: bool
) -> Path:
    """Export the checkpoint in `source`, which the user calls `name`, to ONNX Runtime."""
    require_export_extra()
    checkpoint = open_checkpoint(source)
    family = family_of(checkpoint.family)
    with staged(output, overwrite=overwrite) as folder:
        programs = family.programs(checkpoint)
        graphs, layers = family.lower(programs, quantize, cache, folder)
        manifest = Manifest(
            family=checkpoint.family,
            runtime="onnx",
            quantize=quantize,
            dimensions=asdict(checkpoint.dimensions),
            cache=layers,
            graphs=graphs,
            source={"name": _public_name(name), "sha256": checkpoint.content_hash},
            tools={name: version(name) for name in ("kvcast", "onnxruntime", "torch")},
        )
        text = family.text_files(checkpoint)
        for file, content in text.items():
            (folder / file).write_bytes(content)
        sealed = seal(folder, manifest)
        candidate = family.onnx(folder, sealed, 2)
        # What a user will open is opened here, so that a damaged tokenizer is told now.
        family.model(candidate, checkpoint.dimensions, text)
        record = family.prove(candidate, programs, exact=(quantize, cache) == ("none", "fp32"))
        seal(folder, replace(manifest, verification=record))
    return output


def _public_name(name: str) -> str:
    """Hub ids and packaged models as they are; of a folder only its last part."""
    return Path(name).resolve().name if Path(name).exists() else name


def require_export_extra() -> None:
    """Raise KvcastError unless torch and the exporters are installed."""
    try:
        import onnx_ir  # noqa: F401
        import onnxscript  # noqa: F401
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise KvcastError(
            f"this model must be exported first, which needs {error.name}: "
            "pip install 'kvcast[export]', or give a bundle exported elsewhere"
        ) from None


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise UsageError unless `value` is one of `choices`."""
    if value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
