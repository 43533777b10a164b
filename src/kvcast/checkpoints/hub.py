"""Downloads models by hub id, with huggingface_hub: HF_HOME, HF_HUB_OFFLINE and HF_TOKEN apply.

Downloads only the files that a reader or a bundle needs, and turns every failure into one line.
Knows nothing of the files' contents.
"""

import re
from pathlib import Path
from typing import Any

from kvcast.errors import InputMissingError, KvcastError, UsageError
from kvcast.spec.runtimes import OnPhase, ignore_phase

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
    "source.spm",
    "sentencepiece.bpe.model",
    "target_vocab.json",
    "vocab.txt",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "model.safetensors",
    "model-?????-of-?????.safetensors",
    "model.safetensors.index.json",
    "model.bin",
    "vocabulary.*",
    "bundle.json",
    # Of models that are whole with one alone.
    "adapter_config.json",
    "adapter_model.safetensors",
]
# A bundle's graphs; other repositories have exports in several precisions under this name.
_BUNDLE_PATTERNS = ["onnx/*", "native/*", "text.json", "chat_template.*.jinja"]
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
ADAPTER_PATTERNS = [
    "adapter_config.json",
    "adapter_model.safetensors",
    "adapter_model.safetensors.index.json",
    "adapter_model-?????-of-?????.safetensors",
]
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REVISION = r"(?!.*\.\.)[A-Za-z0-9][\w./-]*"
_QUANTIZATION = r"[A-Za-z0-9][A-Za-z0-9_]*"
_HUB_ID = re.compile(
    rf"(?P<repository>{_PART}/{_PART})(@(?P<revision>{_REVISION}))?"
    rf"(:(?P<quantization>{_QUANTIZATION}))?"
)
_PART_NUMBER = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)", re.IGNORECASE)


def is_hub_id(model: str) -> bool:
    """Tell whether `model` has the form `org/name[@revision][:quantisation]`."""
    return _HUB_ID.fullmatch(model) is not None


def snapshot_in(folder: Path) -> Path:
    """Return the snapshot in a model's folder of huggingface_hub's cache; another folder as it is.

    That of the main branch, or else the newest. The whole cache is its only model. Raises
    InputMissingError if there is no snapshot, UsageError for a cache of several models.
    """
    root = folder.parent if folder.name == "snapshots" else folder
    if models := sorted(path.name for path in root.glob("models--*") if path.is_dir()):
        if len(models) > 1:
            names = ", ".join(name.removeprefix("models--").replace("--", "/") for name in models)
            raise UsageError(f"{folder} holds several models: give the hub id of one ({names})")
        root = root / models[0]
    if not root.resolve().name.startswith("models--") or not (root / "snapshots").is_dir():
        return folder
    snapshots = [path for path in (root / "snapshots").iterdir() if path.is_dir()]
    snapshots.sort(key=lambda path: path.stat().st_mtime)
    main = root / "refs" / "main"
    commit = main.read_text().strip() if main.is_file() else None
    if not snapshots:
        repository = "/".join(root.resolve().name.split("--")[1:])
        raise InputMissingError(
            f"{folder}: download incomplete (no snapshot): run hf download {repository} again"
        )
    return next((path for path in snapshots if path.name == commit), snapshots[-1])


def download(
    model: str, on_phase: OnPhase = ignore_phase, patterns: list[str] | None = None
) -> Path:
    """Return the folder of `org/name[@revision]`, downloaded or from huggingface_hub's cache.

    Only files of these patterns are fetched, by default a model's.

    With `:quantisation`, such as `:Q4_K_M`, it is the GGUF file that has it in its name. `on_phase`
    is told how much has arrived; without it the library draws its own bars on a terminal.

    Raises InputMissingError if there is no such model, revision or file, or it is not in the cache
    and the hub cannot be reached; KvcastError if several files have the quantisation, access is
    denied or the download fails.
    """
    match = _HUB_ID.fullmatch(model)
    if match is None:
        raise InputMissingError(f"{model!r} is not a hub id (org/name[@revision][:quantisation])")
    # Imported here, so that only downloads pay for importing an HTTP client.
    from huggingface_hub import snapshot_download

    repository, revision = match["repository"], match["revision"]
    quantization = match["quantization"]
    of_model = patterns is None and quantization is None
    wanted = (patterns or _PATTERNS) if quantization is None else _patterns_of(quantization)
    bars = None if on_phase is ignore_phase else _telling(on_phase)

    def fetched(patterns: list[str]) -> Path:
        return Path(
            snapshot_download(
                repository, revision=revision, allow_patterns=patterns, tqdm_class=bars
            )
        )

    try:
        folder = fetched(wanted)
        if of_model and (more := _missing_patterns(folder)):
            folder = fetched([*wanted, *more])
    except Exception as error:
        # Beside its own errors, the library lets those of its HTTP client through.
        raise _one_line(error, repository, revision) from error
    return folder if quantization is None else _file_of(folder, repository, quantization)


def _telling(on_phase: OnPhase) -> Any:
    """Return a class of progress bars that draws nothing and tells how many bytes have arrived."""
    from tqdm import tqdm

    bars: list[Any] = []  # of bytes: one counts what the network brings, one what was written

    class Told(tqdm):  # type: ignore[misc]
        def __init__(self, *given: Any, unit: str = "it", **keywords: Any) -> None:
            super().__init__(*given, unit=unit, **keywords | {"disable": True})
            self._counts_bytes = unit == "B"
            if self._counts_bytes:
                bars.append(self)

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            total = min((bar.total for bar in bars if bar.total), default=0)
            if self._counts_bytes and total:
                done = min(max(bar.n for bar in bars), total)
                on_phase(f"downloading, {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")

    return Told


def _patterns_of(quantization: str) -> list[str]:
    """Return the patterns of GGUF files, which tell letters from capitals."""
    spellings = {quantization, quantization.lower(), quantization.upper()}
    return [f"*{spelling}*.gguf" for spelling in sorted(spellings)]


def _file_of(folder: Path, repository: str, quantization: str) -> Path:
    """Return the GGUF file with that quantisation in its name, of several parts the first."""
    named = re.compile(rf"(^|[^A-Za-z0-9]){quantization}(?![A-Za-z0-9_])", re.IGNORECASE)
    files = sorted(path for path in folder.rglob("*.gguf") if named.search(path.stem))
    models = {_PART_NUMBER.sub("", str(path.relative_to(folder))): path for path in reversed(files)}
    if not models:
        raise InputMissingError(f"{repository} has no GGUF file of {quantization}")
    if len(models) > 1:
        raise KvcastError(
            f"{repository} has several GGUF files of {quantization} ({', '.join(sorted(models))}): "
            "download one of them and give its path"
        )
    return next(iter(models.values()))


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
