"""Downloads models by hub id, with huggingface_hub: HF_HOME, HF_HUB_OFFLINE and HF_TOKEN apply.

Downloads only the files that a reader or a bundle needs, and turns every failure into one line.
Knows nothing of the files' contents.
"""

import re
from pathlib import Path

from kvcast.errors import InputMissingError, KvcastError

# Weights that a reader can use: no second copy in float32, no pickles, no other framework's.
_PATTERNS = [
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "spiece.model",
    "vocab.txt",
    "chat_template.jinja",
    "model.safetensors",
    "model-?????-of-?????.safetensors",
    "model.safetensors.index.json",
    "model.bin",
    "vocabulary.*",
    "bundle.json",
]
# A bundle's graphs; other repositories have exports in several precisions under this name.
_BUNDLE_PATTERNS = ["onnx/*"]
# Mistral's own layout, downloaded only if the repository does not have the other one as well.
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
    """Return the folder of `org/name[@revision]`, downloaded or from huggingface_hub's cache.

    Raises InputMissingError if there is no such model or revision, or it is not in the cache and
    the hub cannot be reached; KvcastError if access is denied or the download fails.
    """
    match = _HUB_ID.fullmatch(model)
    if match is None:
        raise InputMissingError(f"{model!r} is not a hub id (org/name or org/name@revision)")
    # Imported here, so that only downloads pay for importing an HTTP client.
    from huggingface_hub import snapshot_download

    repository, revision = match["repository"], match["revision"]
    try:
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=_PATTERNS))
        if more := _missing_patterns(folder):
            both = [*_PATTERNS, *more]
            folder = Path(snapshot_download(repository, revision=revision, allow_patterns=both))
    except Exception as error:
        # Beside its own errors, the library lets those of its HTTP client through.
        raise _one_line(error, repository, revision) from error
    return folder


def _missing_patterns(folder: Path) -> list[str]:
    """Return the patterns of further files, after seeing the repository's files."""
    if (folder / "bundle.json").is_file():
        return _BUNDLE_PATTERNS
    has_weights = any(any(folder.glob(pattern)) for pattern in _WEIGHTS)
    return [] if has_weights else _MISTRAL_PATTERNS


def _one_line(error: Exception, repository: str, revision: str | None) -> KvcastError:
    """Translate an error of huggingface_hub into the user's terms."""
    from huggingface_hub import constants, errors

    offline = (
        "HF_HUB_OFFLINE is set: unset it, or give a folder"
        if constants.HF_HUB_OFFLINE
        else "the hub cannot be reached: connect, or give a folder"
    )
    # The first match counts, since GatedRepoError is a RepositoryNotFoundError.
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
            f"{repository} is not a folder and not in huggingface_hub's cache, and {offline}",
        ),
    )
    for kind, ours, line in known:
        if isinstance(error, kind):
            return ours(line)
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return KvcastError(f"{repository} could not be downloaded: {reason}")
