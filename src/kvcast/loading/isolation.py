"""Opens a package of native code in a child process when it is new to this machine.

Checksums show damage and not intent: someone who changes a package can update its checksum too, and
native code may crash or hang the process that opens it. So a new package is first opened and called
in a child process with a time limit. A success is recorded in the cache folder by the digests of
all of the bundle's files.
"""

import contextlib
import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kvcast.bundle.manifest import Manifest
from kvcast.errors import KvcastError
from kvcast.machine.child import ask
from kvcast.machine.resources import instruction_sets
from kvcast.runtimes.target import TARGETS
from kvcast.spec.files import cache_dir
from kvcast.spec.runtimes import is_native

_CHILD = "kvcast.loading.examination:open_and_call"
_SECONDS = 120
_BYTES_A_SECOND = 20_000_000  # from a slow disk


def check_in_child(bundle: Path, manifest: Manifest, *, trust: bool) -> None:
    """Raise KvcastError if a bundle's first opening crashes or does not end in time.

    Other errors recur when the caller opens the bundle. One without native code is not tried.
    """
    if not is_native(manifest.runtime) or _note(manifest).is_file():
        return
    size = sum(record.size for record in manifest.files.values())
    words = (str(bundle.absolute()), manifest.runtime, "trust" if trust else "")
    seconds = _SECONDS + size / _BYTES_A_SECOND
    answer = ask(_CHILD, *words, seconds=seconds)
    if answer.ended:
        file = min(graph.file for graph in manifest.graphs.values())
        raise KvcastError(
            f"{bundle / file} was opened in a process of its own, as it was not opened on this "
            f"machine before: {answer.problem}; export it again"
        )
    if not answer.problem:
        remember_success(manifest)


def remember_success(manifest: Manifest) -> None:
    if is_native(manifest.runtime):
        note = _note(manifest)
        with contextlib.suppress(OSError):  # a cache that cannot be written only costs time
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()


def _note(manifest: Manifest) -> Path:
    parts = [manifest.to_json(), *instruction_sets()]
    target = TARGETS.get(manifest.runtime)
    for name in ("kvcast", *(target.tools if target else ())):
        with contextlib.suppress(PackageNotFoundError):
            parts.append(f"{name} {version(name)}")
    return cache_dir() / "opened" / hashlib.sha256("\n".join(parts).encode()).hexdigest()
