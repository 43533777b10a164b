"""Exports a checkpoint to a bundle: lower, prove, seal.

torch is imported inside functions: few targets need it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from importlib import import_module
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any

from kvcast.bundle.manifest import MANIFEST, Manifest, is_bundle
from kvcast.bundle.packages import describe_packages
from kvcast.bundle.writing import seal, stage
from kvcast.checkpoints.base import Checkpoint
from kvcast.checkpoints.lora import Adapter
from kvcast.checkpoints.source import fingerprint, locate, open_adapters, open_checkpoint
from kvcast.errors import InputOutputError, KvcastError, UsageError
from kvcast.families.base import Family
from kvcast.families.programs import KEY_VALUE
from kvcast.keywords import keywords_of
from kvcast.loading.components import model_of, programs_of, require_cache, special_tokens
from kvcast.loading.export_proof import prove
from kvcast.loading.isolation import remember_success
from kvcast.loading.params import ExportParams
from kvcast.options import check_path
from kvcast.runtimes.target import TARGETS, BuildOptions, LoweringJob, default_runtime
from kvcast.saving import room_at
from kvcast.spec.runtimes import CALIBRATED, RUNTIMES, BundlePrecision, OnPhase, ignore_phase
from kvcast.spec.stored_matrices import BlocksOf

# Operations that kvcast's own kernels and PyTorch have alone.
_OF_AUDIO = frozenset({"conv2d", "group_norm", "window_attention"})
_BYTES_PER_WEIGHT = {"none": 2.0, "int8": 1.0}
"""At least, by quantisation; less than a byte for others."""


@keywords_of(ExportParams)
def export_bundle(model: str | Path, output: str | Path, params: ExportParams) -> Path:
    """Export a checkpoint to a bundle folder and return it.

    Before the bundle appears, its results are compared with the same weights run without a cache.
    The manifest records the outcome under `verification`.

    Args:
        model: a checkpoint folder, a GGUF file, a hub id `org/name[@revision]`, or a packaged
            model's name.
        output: the bundle's folder; an existing one is replaced only with `overwrite`.
        params: given as keywords.
        on_phase: called with each phase as it begins: "reading", "calibrating: …",
            "exporting decode", "quantising decode", "compiling decode", "sealing", "proving".

    Raises:
        KvcastError: the model cannot be read, exported or written; the message is one line.

    """
    check_path("model", model)
    check_path("output", output)
    runtime = params.runtime or default_runtime(params.precision, params.on_phase)
    precision = RUNTIMES[runtime].choose_precision(params.precision)
    build = BuildOptions(device=params.device, max_autotune=params.max_autotune)
    check_export(runtime, precision, build)
    place = locate(str(model), params.on_phase)
    if is_bundle(place):
        raise UsageError(f"{model} is a bundle: give the checkpoint that it was exported from")
    return export_folder(
        place,
        str(model),
        Path(output),
        runtime,
        precision,
        build,
        overwrite=params.overwrite,
        adapters=open_adapters(params.adapter, params.on_phase),
        on_phase=params.on_phase,
    )


def check_export(runtime: str, precision: BundlePrecision, build: BuildOptions) -> None:
    if not RUNTIMES[runtime].compiles and build != BuildOptions():
        raise UsageError(
            f"{RUNTIMES[runtime].title} compiles nothing: drop --device and --max-autotune"
        )
    info, target = RUNTIMES[runtime], TARGETS[runtime]
    require(f"exporting to {info.title}", target.needs, info.extra)
    if precision.calibrated:
        require(CALIBRATED, ["torch"], "export")
    target.check_build(precision, build)


def check_recipe(
    precision: BundlePrecision, source: Path, name: str, adapters: Sequence[Adapter]
) -> None:
    recipe = precision.recipe
    if recipe is not None and fingerprint(source, adapters) != recipe.sha256:
        raise UsageError(
            f"the recipe was made for {recipe.model}, whose files or adapters are not those of "
            f"{name}: run kvcast quantize {name}"
        )


def export_folder(
    source: Path,
    name: str,
    output: Path,
    runtime: str,
    precision: BundlePrecision,
    build: BuildOptions,
    *,
    overwrite: bool,
    adapters: Sequence[Adapter] = (),
    on_phase: OnPhase = ignore_phase,
) -> Path:
    """As `export_bundle`, of `source`, named `name`, after `check_export`."""
    target = TARGETS[runtime]
    on_phase("reading")
    digest = fingerprint(source)
    check_recipe(precision, source, name, adapters)
    checkpoint = open_checkpoint(source, adapters)
    require_cache(name, checkpoint.family)
    _check_layers(runtime, checkpoint)
    if precision.calibrated:
        _check_calibration(checkpoint.family, checkpoint.dimensions)
    _check_room(output, checkpoint, precision)
    with stage(output, overwrite=overwrite) as folder:
        programs = cache(partial(programs_of, checkpoint))
        blocks_of: BlocksOf = checkpoint.tensors.blocks_of
        calibration: dict[str, Any] = {}
        if precision.calibrated:
            from kvcast.runtimes.lowering.calibration import calibrate

            calibrated = calibrate(programs(), blocks_of, on_phase)
            blocks_of, calibration = calibrated.blocks_of, calibrated.record
        job = LoweringJob(
            checkpoint=checkpoint,
            programs=programs,
            precision=precision,
            build=build,
            special_tokens=special_tokens(checkpoint),
            on_phase=on_phase,
            blocks_of=blocks_of,
        )
        graphs, layers = target.lower(job, folder)
        manifest = Manifest(
            family=checkpoint.family.name,
            runtime=runtime,
            quantize=precision.quantize,
            dtype=precision.dtype,
            device=build.device,
            processor=target.processor(),
            dimensions=asdict(checkpoint.dimensions),
            cache=layers,
            graphs=graphs,
            source={"name": _public_name(name), "sha256": digest},
            calibration=calibration,
            adapters=[adapter.record() for adapter in adapters],
            recipe={} if precision.recipe is None else precision.recipe.fields(),
            tools={name: version(name) for name in ("kvcast", *target.tools)},
        )
        on_phase("sealing")
        for file, content in checkpoint.text.items():
            (folder / file).write_bytes(content)
        describe_packages(folder, manifest)
        sealed = seal(folder, manifest)
        on_phase("proving")
        candidate = target.open(checkpoint.family.name, folder, sealed, 2)
        # Opened as a user will open it, so a damaged tokenizer is reported now.
        model_of(candidate, checkpoint.dimensions, checkpoint.text)
        record = prove(candidate, target.reference(job), exact=precision.exact)
        # It has just run here.
        remember_success(seal(folder, replace(manifest, verification=record)))
    return output


def _check_room(output: Path, checkpoint: Checkpoint, precision: BundlePrecision) -> None:
    shapes = checkpoint.family.tensor_shapes(checkpoint.dimensions)
    weights = sum(prod(shape) for shape in shapes.values())
    least = int(weights * _BYTES_PER_WEIGHT.get(precision.quantize, 0.5))
    if (left := room_at(output)) is not None and left < least:
        raise InputOutputError(
            f"cannot write {output}: No space left on device: it takes {least / 1e6:,.1f} MB or "
            f"more, and {left / 1e6:,.1f} MB are left"
        )


def _is_state(name: str) -> bool:
    return name.startswith(("past_inputs_", "past_state_"))


def _check_layers(runtime: str, checkpoint: Checkpoint) -> None:
    if RUNTIMES[runtime].other_layers:
        return
    dimensions, family = checkpoint.dimensions, checkpoint.family
    caches = family.caches(dimensions)
    layers = [run for run in caches if run.kind != "cross" and run.parts == KEY_VALUE]
    programs = family.write_programs(dimensions).values()
    steps = [step for program in programs for step in program.steps]
    states = {step.operation for step in steps if any(map(_is_state, step.reads))}
    if not states <= set(RUNTIMES[runtime].states):
        problem = "a model with other layers than attention"
    elif len({(layer.heads, layer.head_dim) for layer in layers}) > 1:
        problem = "a model whose layers have heads of several sizes"
    elif any(step.operation == "latent_attention" for step in steps):
        problem = "a model that attends to latents"
    elif any(step.operation == "shared_attention" for step in steps):
        problem = "a model whose layers share caches"
    elif any(step.operation == "moments" for step in steps):
        problem = "a model with several hidden states for each token"
    elif any(step.operation == "source_attention" for step in steps):
        problem = "a model whose encoder has windows or rotation"
    elif any(step.operation in _OF_AUDIO for step in steps):
        problem = "a model with its own audio encoder"
    elif any(step.operation == "channel_convolution" for step in steps):
        problem = "a model whose encoder convolves channels"
    elif any("scales" in step.keywords for step in steps):
        problem = "a model with experts beside feed-forwards"
    else:
        return
    raise UsageError(
        f"{problem}, as {dimensions.architecture}, does not run on {RUNTIMES[runtime].title}: "
        "use --runtime native"
    )


def _check_calibration(family: Family, dimensions: Any) -> None:
    if problem := family.calibration_problem(dimensions):
        raise UsageError(f"{problem}: use --quantize int4")


def calibration_summary(folder: Path) -> str:
    """Summarize the int4 calibration of a bundle just exported as `CALIBRATED`, in one line."""
    record = Manifest.from_json((folder / MANIFEST).read_text(encoding="utf-8")).calibration
    if not record["calibrated"] + record["kept"]:
        return "calibrated nothing: no matrix has whole blocks of inputs"
    kept = f"kept the checkpoint's own codes of {record['kept']} matrices"
    if not record["calibrated"]:
        return f"{kept}: there is nothing to calibrate"
    calibrated = (
        f"calibrated {record['calibrated']} matrices on {record['tokens']:,} tokens that the model "
        f"wrote (seed {record['seed']})"
    )
    return f"{calibrated}, {kept}" if record["kept"] else calibrated


def _public_name(name: str) -> str:
    return Path(name).resolve().name if Path(name).exists() else name


def require(purpose: str, modules: Iterable[str], extra: str | None) -> None:
    for module in modules:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            raise KvcastError(
                f"{purpose} needs {error.name}: pip install 'kvcast[{extra}]'"
            ) from None
