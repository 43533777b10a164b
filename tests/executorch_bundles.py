"""Bundles of random models for ExecuTorch."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvcast.bundle.manifest import CacheLayers, Manifest
from kvcast.bundle.writing import seal, staged

NEEDED = "ExecuTorch is not installed: pip install executorch==1.5.1"


def lowering(family: str) -> ModuleType:
    """The module `kvcast.lowering.executorch_<family>`, or a skipped test."""
    pytest.importorskip("executorch", reason=NEEDED)
    return __import__(f"kvcast.lowering.executorch_{family}", fromlist=["lower"])


def write_executorch_bundle(
    family: str,
    programs: Any,
    layers: tuple[CacheLayers, ...],
    folder: Path,
    quantize: str = "none",
    dimensions: Mapping[str, Any] | None = None,
) -> Manifest:
    """Lower and seal, without the proof that `kvcast.export_bundle` adds."""
    lower = lowering(family).lower
    with staged(folder, overwrite=False) as staging:
        return seal(
            staging,
            Manifest(
                family=family,
                runtime="executorch",
                quantize=quantize,
                dimensions=dict(dimensions or asdict(programs.dimensions)),
                cache=layers,
                graphs=lower(programs, layers, quantize, staging, end_tokens=[7, 9]),
                source={},
                tools={},
            ),
        )
