"""The subject of a verification: an opened model, its bundle's files, and their references."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kvcast.bundle.manifest import MANIFEST, Manifest, is_bundle
from kvcast.bundle.packages import bundle_of, read_on_trust, unvouched_package
from kvcast.checkpoints.base import Checkpoint
from kvcast.checkpoints.source import locate, open_adapters, open_checkpoint
from kvcast.engine.model import Model
from kvcast.errors import UsageError
from kvcast.families.base import Family
from kvcast.families.programs import CacheLayers
from kvcast.families.table import family_with
from kvcast.loading.components import programs_of, require_cache
from kvcast.loading.export_proof import RecordedOutputs, read_record
from kvcast.loading.isolation import remember_success
from kvcast.loading.opening import OpenedModel, open_model
from kvcast.loading.params import LoadParams
from kvcast.runtimes.base import Runtime
from kvcast.runtimes.reference import EagerReference, Reference, has_torch, reference_of
from kvcast.runtimes.target import TARGETS
from kvcast.saving import save
from kvcast.spec.runtimes import RUNTIMES, BundlePrecision
from kvcast.verification.cases import Case, cases_of, driver_of
from kvcast.verification.references import CheckpointOracle, Files, Oracle, RecordedOracle, files_of
from kvcast.verification.report import Report
from kvcast.verification.trial import Trial, tolerance_of

_NATIVE = "native"
VERIFIED = "report"
"""The name of the last report in a manifest's `verification`."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    name: str
    runtime_name: str
    precision: BundlePrecision
    runtime: Runtime = field(repr=False)
    dimensions: Any
    layers: Sequence[CacheLayers]
    cases: Sequence[Case] = field(default=(), repr=False)  # empty: the family's probe
    reference: Reference | None = field(default=None, repr=False)  # the checkpoint in fp32
    recorded: RecordedOutputs | None = field(default=None, repr=False)  # the export's record
    files: Files | None = field(default=None, repr=False)  # None without a bundle
    # folder and manifest; None for a checkpoint that was opened directly
    bundle: tuple[Path, Manifest] | None = field(default=None, repr=False)
    tools: Mapping[str, str] = field(default_factory=dict)

    @property
    def family(self) -> Family:
        return family_with(self.dimensions)

    @property
    def precision_words(self) -> str:
        weights = "" if self.precision.quantize == "none" else f"{self.precision.quantize} weights"
        parts = [weights, self.precision.dtype]
        if self.precision.cache != self.precision.dtype:
            parts.append(f"{self.precision.cache} caches")
        return ", ".join(filter(None, parts))

    def trial(self, *, positions: int, seed: int) -> Trial:
        probe, recorded = self.family.probe(self.dimensions), None
        probed = cases_of(probe)
        if self.recorded is not None:
            recorded = RecordedOracle(self.recorded, probed, probe.end)
        cases = self.cases or probed
        oracle: Oracle | None = None
        if self.reference is not None:
            oracle = CheckpointOracle(self.reference, cases)
        elif not self.cases:
            oracle = recorded
        return Trial(
            driver=driver_of(self.runtime, self.family, self.dimensions),
            dimensions=self.dimensions,
            layers=self.layers,
            cases=cases,
            tolerance=tolerance_of(self.runtime_name, self.precision),
            positions=positions,
            seed=seed,
            oracle=oracle,
            recorded=recorded,
            files=self.files,
            bundle=self.bundle,
        )

    def keep(self, report: Report) -> None:
        """Write a report into the bundle's manifest, if any; raises InputOutputError."""
        if self.bundle is None:
            return
        folder, manifest = self.bundle
        verification = manifest.verification | {VERIFIED: report.document()}
        verified = replace(manifest, verification=verification)
        save(folder / MANIFEST, verified.to_json())
        remember_success(verified)


def open_subject(
    model: str,
    params: LoadParams,
    *,
    against: str | None = None,
    cases_of_model: Callable[[Model], Sequence[Case]] = lambda _: (),
) -> Subject:
    """Open a model, and its reference checkpoint; a bundle's adapters are merged into that.

    Without `against`, the model itself, or its export's record, is the reference; without cases,
    the family's probe is the input. Raises UsageError if `against` is another model, or a bundle.
    """
    alone = replace(params, adapter=()) if against is not None else params
    opened = open_model(model, alone)
    manifest = _manifest(opened)
    dimensions: Any = opened.model.dimensions
    require_cache(model, family_with(dimensions))
    place = locate(against or model, params.on_phase)
    checkpoint = None
    if against is not None or not _is_bundle(model):
        checkpoint = _checkpoint(place, params)
        _check_same(model, dimensions, against or model, checkpoint)
    layers = manifest.cache if manifest else family_with(dimensions).caches(dimensions)
    precision = _precision(opened.runtime, manifest, checkpoint, params)
    recorded = None
    if manifest is not None:
        recorded = read_record(manifest.verification, dimensions)
    files = None
    if manifest is not None and opened.bundle is not None:
        files = files_of(opened.bundle, manifest, dimensions, checkpoint)
    return Subject(
        name=model,
        runtime_name=opened.runtime,
        precision=precision,
        runtime=opened.model.runtime,
        dimensions=dimensions,
        layers=layers,
        cases=cases_of_model(opened.model),
        reference=None if checkpoint is None else _reference(checkpoint, opened.runtime, params),
        recorded=recorded,
        files=files,
        bundle=None if opened.bundle is None or manifest is None else (opened.bundle, manifest),
        tools=_tools(opened.runtime),
    )


def _is_bundle(model: str) -> bool:
    place = Path(model)
    return is_bundle(bundle_of(place)) or unvouched_package(place, None) is not None


def _manifest(opened: OpenedModel) -> Manifest | None:
    if opened.on_trust is not None:
        return read_on_trust(opened.on_trust)
    if opened.bundle is None:
        return None
    return Manifest.from_json((opened.bundle / MANIFEST).read_text(encoding="utf-8"))


def _checkpoint(place: Path, params: LoadParams) -> Checkpoint:
    if _is_bundle(str(place)):
        raise UsageError(f"{place} is a bundle: a reference is the checkpoint it was made from")
    return open_checkpoint(place, open_adapters(params.adapter, params.on_phase))


def _check_same(model: str, dimensions: Any, against: str, checkpoint: Checkpoint) -> None:
    """Raise UsageError if the tensors of the two differ in shape."""
    family, other = family_with(dimensions), family_with(checkpoint.dimensions)
    if family is not other:
        raise UsageError(f"{against} is {other.title}, and {model} is {family.title}")
    shapes, wanted = family.tensor_shapes(checkpoint.dimensions), family.tensor_shapes(dimensions)
    for name in sorted(shapes.keys() | wanted.keys()):
        if shapes.get(name) != wanted.get(name):
            raise UsageError(
                f"{against} is another model than {model}: its {name} is "
                f"{shapes.get(name, 'missing')} and not {wanted.get(name, 'there')}"
            )


def _precision(
    runtime: str, manifest: Manifest | None, checkpoint: Checkpoint | None, params: LoadParams
) -> BundlePrecision:
    if manifest is not None:
        return manifest.precision
    precision = RUNTIMES[runtime].choose_opening(params.precision)
    return precision if checkpoint is None else checkpoint.resolve_precision(precision)


def _reference(checkpoint: Checkpoint, runtime: str, params: LoadParams) -> Reference:
    """Return the model in fp32 on another implementation than the verified one."""
    programs = partial(programs_of, checkpoint)
    if runtime != _NATIVE:
        return reference_of(checkpoint, programs, params.on_phase)
    if has_torch():
        return EagerReference(programs())
    from kvcast.runtimes.native.library import PLAIN

    return reference_of(checkpoint, programs, params.on_phase, PLAIN)


def _tools(runtime: str) -> dict[str, str]:
    names = TARGETS[runtime].tools if runtime in TARGETS else ("torch",)
    found = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
