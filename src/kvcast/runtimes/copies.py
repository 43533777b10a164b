"""Finds whole copies of caches in a bundle, and reads all traffic of its programs.

The table of runtimes names each one's reader. Nothing of a bundle is run. Knows no runtime.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvcast.bundle.manifest import Manifest, read_bundle
from kvcast.errors import KvcastError
from kvcast.families.table import family_of
from kvcast.runtimes.traffic import (
    COPIED,
    CacheTraffic,
    CallSizes,
    ProgramTraffic,
    TrafficReader,
)
from kvcast.spec.entry_points import imported
from kvcast.spec.runtimes import RUNTIMES

_LENGTH = 64
"""Positions before a call, where nobody cares for how many."""


def reader_of(runtime: str) -> TrafficReader:
    """Return a runtime's reader; raises KvcastError for one that is not known or not installed."""
    if runtime not in RUNTIMES:
        raise KvcastError(f"this kvcast knows no runtime {runtime}: update it")
    about = RUNTIMES[runtime]
    if not about.traffic:
        raise KvcastError(f"what {about.title} executes cannot be read")
    try:
        reader: TrafficReader = imported(about.traffic)()
    except ModuleNotFoundError as error:
        raise KvcastError(
            f"programs of {about.title} are read with {error.name}, which is not installed: "
            f"pip install 'kvcast[{about.extra}]'"
        ) from None
    return reader


def traffic_of(folder: Path, manifest: Manifest, sizes: CallSizes) -> Sequence[ProgramTraffic]:
    """Return the traffic of a call of each program of a bundle whose checksums were verified.

    Raises:
        UsageError: the model has no such sizes.
        KvcastError: the runtime's files cannot be read, or say too little.

    """
    programs = reader_of(manifest.runtime).bundle(folder, manifest, sizes)
    # `encode` comes first.
    order = list(family_of(manifest.family).programs(_dimensions(manifest)))
    return sorted(programs, key=lambda program: (*order, program.name).index(program.name))


def copies_of(folder: Path, manifest: Manifest | None = None) -> Sequence[CacheTraffic]:
    """Return the caches of a bundle of which a step makes whole copies; none in a sound one.

    `manifest` is the bundle's, if it has been read and verified. A convolution's last inputs and a
    state are rewritten by nature and do not count.

    Raises:
        InputMissingError: `folder` is no bundle.
        KvcastError: it is damaged, or its files say too little.

    """
    manifest = read_bundle(folder) if manifest is None else manifest
    longest = family_of(manifest.family).positions(_dimensions(manifest))
    length = min(_LENGTH, longest - 1)
    programs = traffic_of(folder, manifest, CallSizes(length=length))
    return [cache for program in programs for cache in program.caches if cache.how == COPIED]


def _dimensions(manifest: Manifest) -> Any:
    return family_of(manifest.family).dimensions.from_json(manifest.dimensions)
