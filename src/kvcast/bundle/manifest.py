"""`bundle.json`: a bundle's model, its graphs' inputs and outputs, and its files' checksums.

Everything that reads a bundle starts here. A folder is rejected without a manifest, with another
format version, or if a file is missing, changed or outside the folder. A manifest may be wrong
although all checksums match, so its fields are checked against each other before memory is
allocated or a file is opened because of them.
"""

import json
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from dataclasses import fields as dataclass_fields
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, Self, TypeVar, get_origin

from kvcast.errors import InputMissingError, InputOutputError, KvcastError
from kvcast.families.base import Family
from kvcast.families.programs import CacheLayers
from kvcast.families.table import family_of
from kvcast.spec.files import file_sha256, sha256_of
from kvcast.spec.runtimes import BundlePrecision, is_native

MANIFEST = "bundle.json"
FORMAT = "kvcast-bundle"
VERSION = 3

LONGEST = 4 << 20
"""The most bytes of a manifest; for a model with 100 layers it has a tenth of this."""

_CACHES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8"}
"""Precisions of caches, by their dtypes."""

_SELF = ("linear", "ring", "latent", "index")
"""Kinds of caches that a bundle's precision of the cache is of."""

_Part = TypeVar("_Part")


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One program: its file, and its inputs' and outputs' names, in the program's order.

    `aliases` maps an output to the input whose buffer it is bound to: caches updated in place.
    """

    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    aliases: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for names in (self.inputs, self.outputs):
            if any(type(name) is not str for name in names) or len(set(names)) < len(names):
                raise KvcastError("a graph's inputs and outputs must be different names")
        buffers = self.aliases.values()
        if not (self.aliases.keys() <= set(self.outputs) and set(buffers) <= set(self.inputs)):
            raise KvcastError("a graph's aliases must lead from its outputs to its inputs")


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        return cls(size=path.stat().st_size, sha256=file_sha256(path))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of `bundle.json`; `files` is filled in when the bundle is sealed.

    `dtype` is of everything that is not quantized, `device` where the graphs run. `processor` lists
    the instructions that native code needs, `calibration` describes that of int4's codes, `recipe`
    is the export's (`kvcast.spec.recipes`); empty if none. `adapters` have a name, a SHA-256 and a
    weight each; `source` is the model that they were merged into.
    """

    family: str
    runtime: str
    quantize: str
    dimensions: dict[str, Any]
    cache: tuple[CacheLayers, ...]
    graphs: dict[str, Graph]
    source: dict[str, str]
    tools: dict[str, str]
    dtype: str = "fp32"
    device: str = "cpu"
    processor: tuple[str, ...] = ()
    calibration: dict[str, Any] = field(default_factory=dict)
    adapters: list[dict[str, Any]] = field(default_factory=list)
    recipe: dict[str, Any] = field(default_factory=dict)
    verification: dict[str, Any] = field(default_factory=dict)
    files: dict[str, FileRecord] = field(default_factory=dict)

    @property
    def precision(self) -> BundlePrecision:
        own = (layers.dtype for layers in self.cache if layers.kind in _SELF)
        return BundlePrecision(
            quantize=self.quantize,
            dtype=self.dtype,
            cache=_CACHES[next(own, "float32")],
            calibrated=bool(self.calibration),
        )

    def model(self) -> tuple[Family, Any]:
        family = family_of(self.family)
        return family, family.dimensions.from_json(self.dimensions)

    def graph(self, name: str) -> Graph:
        try:
            return self.graphs[name]
        except KeyError:
            raise KvcastError(f"the bundle has no graph named {name}; export it again") from None

    def cache_layers(self, kind: str) -> CacheLayers:
        for layers in self.cache:
            if layers.kind == kind:
                return layers
        raise KvcastError(f"the bundle has no {kind} cache layers; export it again")

    def to_json(self) -> str:
        fields = asdict(self)
        # Fields that earlier readers do not know are there only where they are needed.
        for name in ("calibration", "adapters", "recipe"):
            if not fields[name]:
                del fields[name]
        for layers in fields["cache"]:
            for name in ("rotated", "index"):
                if not layers[name]:
                    del layers[name]
        return json.dumps({"format": FORMAT, "version": VERSION, **fields}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """KvcastError for anything that this version does not know."""
        try:
            fields = json.loads(text)
            version = (fields.pop("format"), fields.pop("version"))
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise KvcastError(f"{MANIFEST} is not a kvcast manifest; export again") from None
        if version != (FORMAT, VERSION):
            raise KvcastError(
                f"the bundle has format {version[0]} {version[1]}, this kvcast reads {FORMAT} "
                f"{VERSION}; export it again"
            )
        try:
            fields["cache"] = tuple(_build(CacheLayers, layers) for layers in fields["cache"])
            fields["graphs"] = {
                name: _build(
                    Graph,
                    {
                        "file": graph["file"],
                        "inputs": _parse_names(graph["inputs"]),
                        "outputs": _parse_names(graph["outputs"]),
                        "aliases": graph["aliases"],
                    },
                )
                for name, graph in fields["graphs"].items()
            }
            fields["processor"] = _parse_names(fields.get("processor", []))
            fields["files"] = {
                name: _build(FileRecord, record) for name, record in fields["files"].items()
            }
            return _build(cls, fields)
        except (KeyError, TypeError, AttributeError, KvcastError) as error:
            raise KvcastError(
                f"{MANIFEST} lacks or misspells a field: {error}; export it again"
            ) from None


def _parse_names(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("a field that should be a list of names is not one")
    return tuple(names)


def _build(kind: type[_Part], values: dict[str, Any]) -> _Part:
    """TypeError for a value of the wrong type."""
    made = kind(**values)
    for part in dataclass_fields(kind):  # type: ignore[arg-type]
        expected: Any = get_origin(part.type) or part.type
        if not isinstance(getattr(made, part.name), expected):
            raise TypeError(f"{part.name} is not a {expected.__name__}")
    return made


def is_bundle(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def read_bundle(folder: Path) -> Manifest:
    """Return a bundle's manifest, after checking that all files are there and unchanged.

    InputMissingError: no such folder or manifest. KvcastError: the manifest is not valid, or a file
    is missing, changed or outside.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise InputMissingError(f"{folder} is not a bundle: it has no {MANIFEST}")
    try:
        manifest = Manifest.from_json(_text(path))
    except KvcastError as error:
        raise type(error)(f"{folder}: {error}") from None
    if unlisted := {graph.file for graph in manifest.graphs.values()} - manifest.files.keys():
        raise KvcastError(f"{path} gives no checksum for {min(unlisted)}; export again")
    # Digests of large files are remembered, but for packages of native code.
    programs = {graph.file for graph in manifest.graphs.values()}
    check_files(folder, manifest.files, anew=programs if is_native(manifest.runtime) else ())
    return manifest


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST + 1)
        if len(content) <= LONGEST:
            return content.decode()
    except OSError as error:
        raise InputOutputError(f"{path.name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        pass
    raise KvcastError(f"{path.name} is not a kvcast manifest; export it again")


def check_files(
    folder: Path, files: Mapping[str, FileRecord], *, anew: Container[str] = ()
) -> None:
    """Raise KvcastError unless files exist, unchanged and inside; `anew`: hashed in any case."""
    for name, record in files.items():
        _check_file(folder, name, record, _hash if name in anew else sha256_of)


def stays_inside(name: str) -> bool:
    """Whether a relative path with `/` stays inside the folder that it starts from."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name


def file_records(folder: Path, names: Iterable[str]) -> Mapping[str, FileRecord]:
    return {name: FileRecord.of(folder / name) for name in sorted(names)}


def _hash(path: Path) -> str:
    return FileRecord.of(path).sha256


def _check_file(folder: Path, name: str, record: FileRecord, digest: Callable[[Path], str]) -> None:
    path = folder / name
    # Links are allowed, as in the hub's cache: their target must still have the checksum.
    if not stays_inside(name):
        raise KvcastError(f"{MANIFEST} names {name}, which lies outside {folder}")
    if not path.is_file():
        raise KvcastError(f"{folder} lacks {name}, which {MANIFEST} lists; export it again")
    if path.stat().st_size != record.size or digest(path) != record.sha256:
        raise KvcastError(f"{path} was changed since the export (checksum); export it again")


def check_manifest(manifest: Manifest, dimensions: Any) -> None:
    """Raise KvcastError where a manifest contradicts itself; its files have the stated sizes."""
    family = family_of(manifest.family)
    expected = _each(family.caches(dimensions))
    layers = _each(manifest.cache)
    for layer, wanted in zip(layers, expected, strict=False):
        if not _fits(layer, wanted):
            raise _contradiction(
                f"a cache is {_describe(layer)} and the dimensions say {_describe(wanted)}"
            )
    if len(layers) != len(expected):
        raise _contradiction(f"it has {len(layers)} layers of caches and not {len(expected)}")
    for program in family.programs(dimensions):
        manifest.graph(program)
    # Each weight takes at least 4 bits.
    least = sum(map(prod, family.tensor_shapes(dimensions).values())) // 2
    held = sum(record.size for record in manifest.files.values())
    if held < least:
        raise _contradiction(
            f"a model of its dimensions takes {least} bytes or more, and its files have {held}"
        )


def _contradiction(label: str) -> KvcastError:
    return KvcastError(f"{MANIFEST} contradicts itself: {label}; export it again")


def _each(runs: Iterable[CacheLayers]) -> list[CacheLayers]:
    return [run for run in runs for _ in range(run.layers)]


def _fits(layer: CacheLayers, wanted: CacheLayers) -> bool:
    # A target chooses the dtype, and may allow only shorter sources than the model does.
    is_shorter = layer.kind == "cross" and layer.capacity < wanted.capacity
    same = (layer.kind, layer.length, layer.sizes) == (wanted.kind, wanted.length, wanted.sizes)
    return same and (layer.capacity == wanted.capacity or is_shorter)


def _describe(layer: CacheLayers) -> str:
    return f"{layer.kind}, {layer.heads} heads of {layer.head_dim}, {layer.capacity} positions"
