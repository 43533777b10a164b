"""What a bundle's files hold, beside what its model says that they should.

Without a checkpoint only constants that follow from dimensions are known, such as angles of rotary
positions. Knows no runtime and no family.
"""

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.bundle.manifest import Manifest
from kvcast.checkpoints.base import Checkpoint
from kvcast.families.table import family_of
from kvcast.runtimes.target import TARGETS, Stored
from kvcast.spec.program import Program


@dataclass(frozen=True)
class Files:
    """A bundle's files, and what they should hold.

    Attributes:
        stored: what they hold.
        expected: constants by name, read on lookup.
        written: programs as the family writes them from the manifest's dimensions.
        checkpoint: the checkpoint's dimensions; None without one.
        calibrated: whether int4's codes were calibrated, so that they are not the nearest.

    """

    stored: Stored
    expected: Mapping[str, NDArray[np.generic]]
    written: Mapping[str, Program]
    checkpoint: Any = None
    calibrated: bool = False


def files_of(
    folder: Path, manifest: Manifest, dimensions: Any, checkpoint: Checkpoint | None
) -> Files:
    """Return a bundle's files beside its checkpoint, if there is one.

    Args:
        folder: the bundle's.
        manifest: likewise.
        dimensions: the manifest's, as its family has them.
        checkpoint: whose tensors have the shapes that the bundle's have.

    """
    family = family_of(manifest.family)
    tensors: Mapping[str, NDArray[Any]] = {} if checkpoint is None else checkpoint.tensors
    wanted = dimensions if checkpoint is None else checkpoint.dimensions
    try:
        constants = dict(family.constants(wanted, tensors))
    except KeyError:  # some are made of tensors
        constants = {}
    return Files(
        stored=TARGETS[manifest.runtime].read_stored(
            folder, manifest, family.tensor_shapes(dimensions)
        ),
        # A ChainMap wants to be able to write to its first.
        expected=ChainMap(constants, tensors),  # type: ignore[arg-type]
        written=family.write_programs(dimensions),
        checkpoint=None if checkpoint is None else checkpoint.dimensions,
        calibrated=bool(manifest.calibration),
    )
