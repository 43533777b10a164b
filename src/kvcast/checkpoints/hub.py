"""Models by hub id, fetched with huggingface_hub, which honours HF_HOME, HF_HUB_OFFLINE, HF_TOKEN.

Fetches only files that a reader or a bundle needs, and turns every failure into one line. Knows
nothing of what the files mean.
"""

import re
from pathlib import Path

from kvcast.errors import InputMissingError, KvcastError

# Weights as a reader takes them: no second copy in float32, no pickles, no other frameworks'.
_PATTERNS = [
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "spiece.model",
    "vocab.txt",
    "chat_template.jinja",
    "model.safetensors",
    "model-?????-of-?????.safetensors",
    "model.safetensors.index.json",
    "model.bin",
    "vocabulary.*",
    "bundle.json",
    "onnx/*",
]
# Mistral's own layout, which its repositories often have beside the other: only where that is not.
_WEIGHTS = ("model*.safetensors", "model.bin", "bundle.json")
_MISTRAL_PATTERNS = [
    "params.json",
    "consolidated.safetensors",
    "consolidated-*.safetensors",
    "consolidated.safetensors.index.json",
    "tekken.json",
    "tokenizer.model*",
]
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REVISION = r"(?!.*\.\.)[A-Za-z0-9][\w./-]*"
_HUB_ID = re.compile(rf"(?P<repository>{_PART}/{_PART})(@(?P<revision>{_REVISION}))?")


def is_hub_id(model: str) -> bool:
    """Tell whether `model` has the form `org/name` or `org/name@revision`."""
    return _HUB_ID.fullmatch(model) is not None


def download(model: str) -> Path:
    """Folder with the files of `org/name[@revision]`, fetched or from huggingface_hub's cache.

    Raises InputMissingError if there is no such model or revision, or none in the cache and the
    hub out of reach; KvcastError if it may not be read or the download fails.
    """
    match = _HUB_ID.fullmatch(model)
    if match is None:
        raise InputMissingError(f"{model!r} is not a hub id (org/name or org/name@revision)")
    # Only a run that fetches pays for importing an HTTP client.
    from huggingface_hub import snapshot_download

    repository, revision = match["repository"], match["revision"]
    try:
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=_PATTERNS))
        if not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
            both = [*_PATTERNS, *_MISTRAL_PATTERNS]
            folder = Path(snapshot_download(repository, revision=revision, allow_patterns=both))
    except Exception as error:
        # Beside its own errors the library lets those of its HTTP client through, whichever it is.
        raise _one_line(error, repository, revision) from error
    return folder


def _one_line(error: Exception, repository: str, revision: str | None) -> KvcastError:
    """Say what huggingface_hub raised in the user's terms."""
    from huggingface_hub import constants, errors

    offline = (
        "HF_HUB_OFFLINE is set: unset it, or give a folder"
        if constants.HF_HUB_OFFLINE
        else "the hub cannot be reached: connect, or give a folder"
    )
    # First match counts: gated is a kind of not found.
    known: tuple[tuple[type[Exception], type[KvcastError], str], ...] = (
        (
            errors.GatedRepoError,
            KvcastError,
            f"{repository} is gated: accept its terms on the hub and set HF_TOKEN",
        ),
        (
            errors.RepositoryNotFoundError,
            InputMissingError,
            f"no folder and no model on the hub is called {repository} (a private one needs "
            "HF_TOKEN)",
        ),
        (
            errors.RevisionNotFoundError,
            InputMissingError,
            f"{repository} has no revision {revision}",
        ),
        (
            errors.LocalEntryNotFoundError,
            InputMissingError,
            f"{repository} is no folder here and not in huggingface_hub's cache, and {offline}",
        ),
    )
    for kind, ours, line in known:
        if isinstance(error, kind):
            return ours(line)
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return KvcastError(f"{repository} could not be downloaded: {reason}")
