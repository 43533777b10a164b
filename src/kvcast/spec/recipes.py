"""Recipes: the precision of each matrix of a model, and of its caches, in a JSON file."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kvcast.errors import InputMissingError, InputOutputError, KvcastError

FORMAT, VERSION = "kvcast-recipe", 1
ENDING = ".json"

RECIPE = "recipe"
"""The quantisation of a model whose matrices differ in precision, as manifests call it."""

MATRICES = ("fp32", "int8", "int4")
"""Precisions of a matrix, the largest first."""
CACHES = ("fp32", "fp16", "int8")
"""Precisions of caches, the largest first."""

_LONGEST = 4 << 20  # bytes of a file; a matrix takes some 60 of them
_MOST_MATRICES = 20_000
_LONGEST_NAME = 1_000
_FIELDS = ("model", "matrices", "caches", "measured")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    model: str
    sha256: str  # of its files, and of merged adapters
    matrices: Mapping[str, str] = field(hash=False)  # "fp32", "int8" or "int4" by name
    self_cache: str = "fp32"  # "fp32", "fp16" or "int8", of self-attention caches
    cross_cache: str = "fp32"
    # measurements of the search; nothing depends on them
    measured: Mapping[str, float | str] = field(default_factory=dict, hash=False, compare=False)

    @property
    def exact(self) -> bool:
        return set(self.matrices.values()) <= {"fp32"}

    def fields(self) -> dict[str, Any]:
        """Fields of a file or a manifest; matrices sorted by name."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "model": {"name": self.model, "sha256": self.sha256},
            "matrices": dict(sorted(self.matrices.items())),
            "caches": {"self": self.self_cache, "cross": self.cross_cache},
            "measured": dict(self.measured),
        }

    def text(self) -> str:
        return json.dumps(self.fields(), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; raises InputMissingError, InputOutputError or KvcastError, in one line."""
        try:
            with path.open("rb") as file:
                content = file.read(_LONGEST + 1)
        except FileNotFoundError:
            raise InputMissingError(f"no recipe {path}: kvcast quantize writes one") from None
        except OSError as error:
            raise InputOutputError(f"cannot read {path}: {error.strerror}") from None
        if len(content) > _LONGEST:
            raise KvcastError(f"{path} is no recipe: it has more than {_LONGEST} bytes")
        try:
            return cls.of(json.loads(content))
        except (ValueError, RecursionError):
            raise KvcastError(f"{path} is no recipe: it is not JSON") from None
        except KvcastError as error:
            raise KvcastError(f"{path} is no recipe: {error}") from None

    @classmethod
    def of(cls, given: object) -> Self:
        """Return the recipe that `fields` describes; KvcastError for anything else."""
        fields = _object(given, "it", ("format", "version", *_FIELDS))
        if (fields["format"], fields["version"]) != (FORMAT, VERSION):
            raise KvcastError(f"this kvcast reads {FORMAT} {VERSION}")
        model = _object(fields["model"], "model", ("name", "sha256"))
        caches = _object(fields["caches"], "caches", ("self", "cross"))
        matrices = fields["matrices"]
        if not isinstance(matrices, dict) or not 0 < len(matrices) <= _MOST_MATRICES:
            raise KvcastError(f"matrices must be an object of 1 to {_MOST_MATRICES} names")
        return cls(
            model=_text("the model's name", model["name"]),
            sha256=_digest(model["sha256"]),
            matrices={
                _text("a matrix's name", name): _one_of(MATRICES, precision, "a matrix's precision")
                for name, precision in matrices.items()
            },
            self_cache=_one_of(CACHES, caches["self"], "a cache's precision"),
            cross_cache=_one_of(CACHES, caches["cross"], "a cache's precision"),
            measured=_measured(fields["measured"]),
        )


def names_recipe(quantize: str | None) -> bool:
    return quantize is not None and quantize.endswith(ENDING)


def _object(given: object, label: str, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(given, dict) or set(given) != set(names):
        raise KvcastError(f"{label} must be an object of {', '.join(names)}")
    return given


def _text(label: str, given: object) -> str:
    if not isinstance(given, str) or not 0 < len(given) <= _LONGEST_NAME:
        raise KvcastError(f"{label} must be a string of 1 to {_LONGEST_NAME} characters")
    return given


def _digest(given: object) -> str:
    text = _text("the model's sha256", given)
    if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
        raise KvcastError("the model's sha256 must be 64 hexadecimal digits")
    return text


def _one_of(choices: tuple[str, ...], given: object, label: str) -> str:
    if not isinstance(given, str) or given not in choices:
        raise KvcastError(f"{label} must be one of {', '.join(choices)}")
    return given


def _measured(given: object) -> dict[str, float | str]:
    if not isinstance(given, dict) or len(given) > 100:
        raise KvcastError("measured must be an object of at most 100 names")
    for name, value in given.items():
        _text("a name in measured", name)
        is_number = isinstance(value, int | float) and math.isfinite(value)
        if not (is_number or isinstance(value, str)) or len(str(value)) > _LONGEST_NAME:
            raise KvcastError("measured must have numbers and short strings alone")
    return given
