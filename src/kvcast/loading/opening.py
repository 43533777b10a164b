"""Opens a model by name or path.

A bundle is opened directly, and so is a checkpoint on runtimes that need no bundle. For others it
is exported once into the cache folder, under a name derived from its content and the options.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, cast, overload

from kvcast import __version__
from kvcast.bundle.manifest import (
    MANIFEST,
    VERSION,
    Manifest,
    check_manifest,
    is_bundle,
    read_bundle,
)
from kvcast.bundle.packages import bundle_of, is_package, read_on_trust, unvouched_package
from kvcast.bundle.writing import remove_abandoned
from kvcast.checkpoints.base import Checkpoint
from kvcast.checkpoints.lora import Adapter
from kvcast.checkpoints.source import (
    fingerprint,
    locate,
    notices_of,
    open_adapters,
    open_checkpoint,
)
from kvcast.engine.model import Model
from kvcast.errors import InputOutputError, KvcastError, UsageError
from kvcast.families.base import Family, Task
from kvcast.families.table import family_of
from kvcast.keywords import keywords_of
from kvcast.loading.components import model_of, programs_of, quantize_eager
from kvcast.loading.exporting import check_export, check_recipe, export_folder, require
from kvcast.loading.isolation import check_in_child
from kvcast.loading.params import LoadParams
from kvcast.machine.resources import available_cores
from kvcast.options import check_path
from kvcast.runtimes.target import TARGETS, BuildOptions, Target, default_runtime
from kvcast.spec.files import exports_dir, sha256_of
from kvcast.spec.recipes import Recipe, names_recipe
from kvcast.spec.runtimes import CALIBRATED, RUNTIMES, BundlePrecision, OnPhase, PrecisionRequest

if TYPE_CHECKING:
    from kvcast.text.model import TextGenerator, TextModel
    from kvcast.text.text2text import T5Model, UnilmModel
    from kvcast.whisper.model import WhisperModel


_OTHER_TASK: Mapping[Task, str] = {
    "transcribe": "turns recordings into text and takes no prompt: use kvcast transcribe",
    "generate": "generates text and does not listen: use kvcast generate",
    "embed": "turns texts into vectors: use kvcast embed",
    "rerank": "ranks documents for a query: use kvcast rerank",
}

NO_ADAPTERS = "is a bundle, which takes no adapters: export its model again, with --adapter"


@dataclass(frozen=True, kw_only=True)
class OpenedModel:
    model: Model
    runtime: str
    bundle: Path | None = None  # the opened bundle; None for a checkpoint or a package
    on_trust: Path | None = None  # the package, if no manifest verifies it
    notices: Sequence[str] = ()


P = ParamSpec("P")


class _Load(Protocol[P]):
    """`load` as type checkers see it: the kinds of the packaged models are known."""

    @overload
    def __call__(
        self, model: Literal["demo", "demo-base"], /, *args: P.args, **options: P.kwargs
    ) -> "WhisperModel": ...
    @overload
    def __call__(
        self, model: Literal["demo-chat"], /, *args: P.args, **options: P.kwargs
    ) -> "TextModel": ...
    @overload
    def __call__(
        self, model: Literal["demo-t5"], /, *args: P.args, **options: P.kwargs
    ) -> "T5Model": ...
    @overload
    def __call__(
        self, model: Literal["demo-unilm"], /, *args: P.args, **options: P.kwargs
    ) -> "UnilmModel": ...
    @overload
    def __call__(self, model: str | Path, /, *args: P.args, **options: P.kwargs) -> Model: ...


def _by_name(params: Callable[P, LoadParams]) -> Callable[[Callable[..., Model]], _Load[P]]:
    del params
    return lambda function: cast("_Load[P]", function)


@_by_name(LoadParams)
@keywords_of(LoadParams)
def load(model: str | Path, params: LoadParams) -> Model:
    """Open a model, exporting it first if necessary.

    A model of speech transcribes, any other generates: see its `task`.

    Args:
        model: a bundle, a checkpoint folder (Hugging Face, CTranslate2, Mistral, bert4keras or
            Bergamot layout), a GGUF file, a hub id `org/name[@revision]`, or a packaged model:
            `demo`, `demo-base`, `demo-chat`, `demo-t5`, `demo-unilm`.
        params: given as keywords.
        on_phase: called with how much is done of a download and of packing, and with each phase of
            an export as it begins; see `export_bundle`.

    Raises:
        KvcastError: the model cannot be found, read, exported or run; the message is one line.

    """
    check_path("model", model)
    return open_model(model, params).model


def open_model(
    model: str | Path,
    params: LoadParams,
    *,
    task: Task | None = None,
    isolate: bool = True,
) -> OpenedModel:
    """Open a model as `load` does, unless it is of another `task`.

    With `isolate`, a package that is new to this machine is first opened in a child process.
    """
    runtime, request = params.runtime, params.precision
    threads = params.threads or available_cores()
    place = locate_model(model, params.on_phase)
    folder = bundle_of(place)
    package = unvouched_package(place, runtime)
    adapters = _adapters(folder, package, params)
    if package is not None:
        _check_trust(package, params.trust)
        manifest = read_on_trust(package)
    elif is_bundle(folder):
        manifest = read_bundle(folder)
    elif direct := _open_directly(folder, str(model), params, task, threads, adapters):
        return direct
    else:
        folder, manifest = export_once(folder, str(model), params, task, adapters)
    _check_task(model, family_of(manifest.family), task)
    check_request(folder, manifest, runtime, request)
    if isolate:
        check_in_child(folder, manifest, trust=params.trust)
    opened_bundle = _open_bundle(folder, manifest, threads)
    about = notices_of(adapters, str(model))
    opened = _open(opened_bundle, manifest.runtime, params, package, about)
    return opened if package is not None else replace(opened, bundle=folder)


def _adapters(folder: Path, package: Path | None, params: LoadParams) -> list[Adapter]:
    if params.adapter and (package is not None or is_bundle(folder)):
        raise UsageError(f"{package or folder} {NO_ADAPTERS}")
    return open_adapters(params.adapter, params.on_phase)


def _open_directly(
    folder: Path,
    name: str,
    params: LoadParams,
    task: Task | None,
    threads: int,
    adapters: Sequence[Adapter],
) -> OpenedModel | None:
    runtime = params.runtime or default_runtime(params.precision, params.on_phase)
    precision = RUNTIMES[runtime].choose_opening(params.precision)
    if not RUNTIMES[runtime].direct or precision.calibrated:
        return None
    check_recipe(precision, folder, name, adapters)
    checkpoint = open_checkpoint(folder, adapters)
    _check_task(name, checkpoint.family, task)
    if RUNTIMES[runtime].exports:
        opened = TARGETS[runtime].open_checkpoint(checkpoint, precision, threads, params.on_phase)
    else:
        opened = _eager(checkpoint, precision, threads)
    model: Model = model_of(opened, checkpoint.dimensions, checkpoint.text)
    return _open(model, runtime, params, None, notices_of(adapters, name))


def _open(
    model: Model,
    runtime: str,
    params: LoadParams,
    on_trust: Path | None,
    notices: Sequence[str],
) -> OpenedModel:
    if model.task == "generate":
        from kvcast.text.params import GenerationDefaults

        generator = cast("TextGenerator", model)
        notices = [*notices, *generator.notices]
        if params.generation_config:
            defaults = GenerationDefaults(generator.tokenizer.generation)
            defaults.check()
            generator.recommend(defaults)
    return OpenedModel(model=model, runtime=runtime, on_trust=on_trust, notices=notices)


def model_digest(model: str | Path, params: LoadParams) -> str:
    """SHA-256 (hexadecimal) of the model that `load` would open: of the files, or the manifest."""
    place = locate_model(model, params.on_phase)
    folder = bundle_of(place)
    package = unvouched_package(place, params.runtime)
    adapters = _adapters(folder, package, params)
    if package is None and not is_bundle(folder):
        return fingerprint(folder, adapters)
    file = package or folder / MANIFEST
    try:
        return sha256_of(file)
    except OSError as error:
        raise InputOutputError(f"cannot read {file}: {error.strerror}") from None


def locate_model(model: str | Path, on_phase: OnPhase) -> Path:
    return Path(model) if is_package(Path(model)) else locate(str(model), on_phase)


def _check_task(model: str | Path, family: Family, task: Task | None) -> None:
    if task is not None and (own := family.task) != task:
        raise UsageError(f"{model} {_OTHER_TASK[own]}, or another model")


def _check_trust(package: Path, trust: bool) -> None:
    if not trust:
        raise KvcastError(
            f"{package} can contain native code and has no {MANIFEST} to verify it by: "
            "give --trust if you trust its maker, or export the model here"
        )


def check_request(
    folder: Path, manifest: Manifest, runtime: str | None, request: PrecisionRequest
) -> None:
    options = {
        "runtime": (runtime, manifest.runtime),
        "quantize": (request.quantize, _quantize(manifest)),
        "dtype": (request.dtype, manifest.dtype),
        "cache": (request.cache, manifest.precision.cache),
    }
    for option, (value, has) in options.items():
        if option == "quantize" and value is not None and names_recipe(value):
            _check_followed(folder, manifest, value)
        elif value not in (None, has):
            raise UsageError(
                f"{folder} was exported with --{option} {has}: use that, not --{option} "
                f"{value}, or export the checkpoint again"
            )


def _check_followed(folder: Path, manifest: Manifest, path: str) -> None:
    recipe = Recipe.read(Path(path))
    if not manifest.recipe or Recipe.of(manifest.recipe) != recipe:
        raise UsageError(
            f"{folder} was not exported with --quantize {path}: leave that out, or export the "
            "checkpoint again"
        )


def checked_dimensions(folder: Path, manifest: Manifest) -> Any:
    try:
        _, dimensions = manifest.model()
        check_manifest(manifest, dimensions)
    except KvcastError as error:
        raise KvcastError(f"{folder}: {error}") from None
    return dimensions


def _open_bundle(folder: Path, manifest: Manifest, threads: int) -> Model:
    dimensions = checked_dimensions(folder, manifest)
    # Text files are next to the manifest, graphs in separate folders.
    text = {name: (folder / name).read_bytes() for name in manifest.files if "/" not in name}
    runtime = _target(folder, manifest).open(manifest.family, folder, manifest, threads)
    model: Model = model_of(runtime, dimensions, text)
    return model


def _target(folder: Path, manifest: Manifest) -> Target:
    if manifest.runtime not in TARGETS:
        raise KvcastError(
            f"{folder}: this kvcast does not support runtime {manifest.runtime}: update it"
        )
    return TARGETS[manifest.runtime]


def _eager(checkpoint: Checkpoint, precision: BundlePrecision, threads: int) -> Any:
    require(RUNTIMES["eager"].title, ["torch"], RUNTIMES["eager"].extra)
    from kvcast.runtimes.eager.runtime import eager_runtime, use_threads

    use_threads(threads)
    programs = programs_of(checkpoint)
    if precision.quantize != "none":
        quantize_eager(programs, precision.quantize)
    return eager_runtime(programs)


def _quantize(manifest: Manifest) -> str:
    return CALIBRATED if manifest.calibration else manifest.quantize


def export_once(
    checkpoint: Path,
    name: str,
    params: LoadParams,
    task: Task | None,
    adapters: Sequence[Adapter] = (),
) -> tuple[Path, Manifest]:
    """Return a checkpoint's bundle in the cache folder; export it if it is not there yet."""
    runtime = params.runtime or default_runtime(params.precision, params.on_phase)
    target, build = TARGETS[runtime], BuildOptions()
    precision = RUNTIMES[runtime].choose_precision(params.precision)
    made_for = target.processor()
    versions = (str(VERSION), __version__)
    codes = (CALIBRATED,) if precision.calibrated else ()
    digest = fingerprint(checkpoint, adapters)
    parts = (digest, runtime, repr(precision), *codes, *made_for, *versions)
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]
    bundle = exports_dir() / key
    remove_abandoned(bundle.parent)
    with contextlib.suppress(KvcastError):
        return bundle, read_bundle(bundle)
    # It is missing or damaged: exporting mends both.
    _check_task(name, open_checkpoint(checkpoint).family, task)
    check_export(runtime, precision, build)
    with _only_exporter(bundle):
        with contextlib.suppress(KvcastError):
            return bundle, read_bundle(bundle)  # another process has exported it meanwhile
        export_folder(
            checkpoint,
            name,
            bundle,
            runtime,
            precision,
            build,
            overwrite=True,
            adapters=adapters,
            on_phase=params.on_phase,
        )
    return bundle, read_bundle(bundle)


@contextmanager
def _only_exporter(bundle: Path) -> Iterator[None]:
    from filelock import FileLock

    lock = FileLock(f"{bundle}.lock")
    try:
        bundle.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise InputOutputError(f"cannot write {bundle.parent}: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()
