"""The first opening of a package of native code on this machine, in a child process.

Checksums show damage and not intent: whoever changes a package can seal it again, and native code
may crash or hang a process that opens it. So a package that was not opened here before is opened
and called in a child process with a time limit. What went well is remembered in the cache folder by
the digests of all of the bundle's files. Knows no runtime.
"""

import contextlib
import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvcast.bundle.manifest import Manifest
from kvcast.errors import KvcastError, UsageError
from kvcast.runtimes.cores import instruction_sets
from kvcast.spec.paths import cache_dir
from kvcast.tasks.child import ask

if TYPE_CHECKING:
    from kvcast.tasks.loading import Model

_SECONDS = 120
_BYTES_A_SECOND = 20_000_000  # from a slow disk
# The first one that fits the model's context: a chunk and a step, and a step alone.
_PROMPTS = ("The quick brown fox jumps over the lazy dog. " * 4, "fox", "的")


def check_first_opening(bundle: Path, manifest: Manifest, *, trust: bool) -> None:
    """Raise KvcastError if opening a bundle for the first time ends its process, or never ends.

    Whatever else goes wrong there is left to whoever opens it here. A bundle without native code is
    not tried.
    """
    if not _is_native(manifest) or _note(manifest).is_file():
        return
    size = sum(record.size for record in manifest.files.values())
    words = (str(bundle.absolute()), manifest.runtime, "trust" if trust else "")
    seconds = _SECONDS + size / _BYTES_A_SECOND
    answer = ask(f"{__name__}:open_and_call", *words, seconds=seconds)
    if answer.ended:
        file = min(graph.file for graph in manifest.graphs.values())
        raise KvcastError(
            f"{bundle / file} was opened in a process of its own, as it was not opened on this "
            f"machine before: {answer.problem}; export it again"
        )
    if not answer.problem:
        remember_opening(manifest)


def remember_opening(manifest: Manifest) -> None:
    """Note that this bundle was opened and called here and all went well."""
    if _is_native(manifest):
        note = _note(manifest)
        with contextlib.suppress(OSError):  # a cache that cannot be written only costs time
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()


def open_and_call(bundle: str, runtime: str, trust: str = "") -> None:
    """Open a bundle and call it once; raises KvcastError, or whatever a broken one raises."""
    from kvcast.tasks.loading import open_model
    from kvcast.tasks.params import LoadParams

    params = LoadParams(runtime=runtime, threads=1, trust=bool(trust))
    opened = open_model(bundle, params, first_opening=False)
    call_once(opened.model)


def call_once(model: "Model") -> None:
    """Let a model write a few tokens; raises KvcastError."""
    if model.task == "transcribe":
        noise = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)
        list(
            model.transcribe(
                noise,
                temperature=0,
                max_new_tokens=2,
                no_speech_threshold=None,
                logprob_threshold=None,
            )
        )
        return
    for prompt in _PROMPTS:
        with contextlib.suppress(UsageError):  # longer than the model's context, or no token at all
            model.generate(prompt, max_new_tokens=2)


def _is_native(manifest: Manifest) -> bool:
    return manifest.runtime != "onnx"


def _note(manifest: Manifest) -> Path:
    """Where it is noted, under a name made of all that could make a difference."""
    parts = [manifest.to_json(), *instruction_sets()]
    for name in ("kvcast", "torch", "executorch"):
        with contextlib.suppress(PackageNotFoundError):
            parts.append(f"{name} {version(name)}")
    return cache_dir() / "opened" / hashlib.sha256("\n".join(parts).encode()).hexdigest()
