"""Downloads models by hub id, with huggingface_hub: HF_HOME, HF_HUB_OFFLINE and HF_TOKEN apply.

Downloads only the files that a reader or a bundle needs, and turns every failure into one line.
`PUBLISHED` has a published model of each type as an example for users.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvcast.checkpoints.sentence_transformers import PATTERNS as SENTENCE_PATTERNS
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
    # For models that need only one of these.
    "adapter_config.json",
    "adapter_model.safetensors",
    *SENTENCE_PATTERNS,
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
    """Of the form `org/name[@revision][:quantization]`."""
    return _HUB_ID.fullmatch(model) is not None


def snapshot_in(folder: Path) -> Path:
    """Return the snapshot in a model's folder of huggingface_hub's cache; other folders unchanged.

    The main branch's, or else the newest; for the whole cache, its only model's. Raises
    InputMissingError if there is none, UsageError for a cache of several models.
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

    With `:quantization`, such as `:Q4_K_M`, it is the GGUF file that has it in its name. Only files
    of `patterns` are fetched, by default a model's. Without `on_phase` the library draws progress
    bars on a terminal. Raises InputMissingError if there is no such model, revision or file, or no
    connection; KvcastError if several files match, access is denied or the download fails.
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

    def fetch(patterns: list[str]) -> Path:
        return Path(
            snapshot_download(
                repository, revision=revision, allow_patterns=patterns, tqdm_class=bars
            )
        )

    try:
        folder = fetch(wanted)
        if of_model and (more := _missing_patterns(folder)):
            folder = fetch([*wanted, *more])
    except Exception as error:
        # The library also raises its HTTP client's errors.
        raise _one_line(error, repository, revision) from error
    return folder if quantization is None else _file_of(folder, repository, quantization)


def download_size(repository: str) -> int:
    """Return the bytes that `download` would fetch of a whole model; raises as it does."""
    from fnmatch import fnmatch

    from huggingface_hub import HfApi

    try:
        files = HfApi().model_info(repository, files_metadata=True).siblings or ()
    except Exception as error:
        raise _one_line(error, repository, None) from error
    return sum(
        file.size or 0
        for file in files
        if any(fnmatch(file.rfilename, pattern) for pattern in _PATTERNS)
    )


def _telling(on_phase: OnPhase) -> Any:
    """Return a class of progress bars that draws nothing and reports the downloaded bytes."""
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
    """Several spellings, as patterns are case-sensitive."""
    spellings = {quantization, quantization.lower(), quantization.upper()}
    return [f"*{spelling}*.gguf" for spelling in sorted(spellings)]


def _file_of(folder: Path, repository: str, quantization: str) -> Path:
    """Of several parts the first."""
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
    """Patterns of further files, after seeing the repository's files."""
    if (folder / "bundle.json").is_file():
        return _BUNDLE_PATTERNS
    has_weights = any(any(folder.glob(pattern)) for pattern in _WEIGHTS)
    return [] if has_weights else _MISTRAL_PATTERNS


def _one_line(error: Exception, repository: str, revision: str | None) -> KvcastError:
    from huggingface_hub import constants, errors

    offline = (
        "HF_HUB_OFFLINE is set: unset it, or give a folder"
        if constants.HF_HUB_OFFLINE
        else "the hub cannot be reached: connect, or give one that kvcast list shows"
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


PUBLISHED: Mapping[str, str] = {
    "bert (embed)": "sentence-transformers/all-MiniLM-L6-v2",
    "gemma3_text (embed)": "google/embeddinggemma-300m",
    "mpnet (embed)": "sentence-transformers/all-mpnet-base-v2",
    "roberta (embed)": "sentence-transformers/all-distilroberta-v1",
    "xlm-roberta (embed)": "intfloat/multilingual-e5-small",
    "bert (rerank)": "cross-encoder/ms-marco-MiniLM-L6-v2",
    "roberta (rerank)": "cross-encoder/stsb-roberta-base",
    "xlm-roberta (rerank)": "BAAI/bge-reranker-v2-m3",
    "afmoe": "arcee-ai/Trinity-Mini",
    "apertus": "swiss-ai/Apertus-8B-Instruct-2509",
    "arcee": "arcee-ai/AFM-4.5B",
    "aya_vision": "CohereLabs/aya-vision-8b",
    "axk1": "skt/A.X-K1",
    "bailing_hybrid": "inclusionAI/Ling-3.0-Flash",
    "bamba": "ibm-ai-platform/Bamba-9B-v2",
    "bart": "facebook/bart-large-cnn",
    "bert": "google-bert/bert-base-uncased",
    "blenderbot": "facebook/blenderbot-400M-distill",
    "blenderbot-small": "facebook/blenderbot_small-90M",
    "canary": "nvidia/canary-1b-v2",
    "cohere": "CohereLabs/aya-expanse-8b",
    "cohere2": "CohereLabs/c4ai-command-r7b-12-2024",
    "cohere_asr": "CohereLabs/cohere-transcribe-03-2026",
    "deepseek_v2": "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek_v3": "deepseek-ai/DeepSeek-V3",
    "deepseek_v32": "deepseek-ai/DeepSeek-V3.2-Exp",
    "dots1": "rednote-hilab/dots.llm1.inst",
    "ernie4_5": "baidu/ERNIE-4.5-0.3B-PT",
    "ernie4_5_moe": "baidu/ERNIE-4.5-21B-A3B-PT",
    "exaone4": "LGAI-EXAONE/EXAONE-4.0-1.2B",
    "exaone4_5": "LGAI-EXAONE/EXAONE-4.5-33B",
    "falcon": "tiiuae/falcon-7b-instruct",
    "falcon_h1": "tiiuae/Falcon-H1-0.5B-Instruct",
    "gemma": "google/gemma-2b-it",
    "gemma2": "google/gemma-2-2b-it",
    "gemma3": "google/gemma-3-4b-it",
    "gemma3_text": "google/gemma-3-1b-it",
    "gemma3n": "google/gemma-3n-E2B-it",
    "gemma4": "google/gemma-4-E2B-it",
    "glm": "zai-org/glm-4-9b-chat-hf",
    "glm4": "zai-org/GLM-4-9B-0414",
    "glm4_moe": "zai-org/GLM-4.5-Air",
    "glm4_moe_lite": "zai-org/GLM-4.7-Flash",
    "glm4v": "zai-org/GLM-4.1V-9B-Thinking",
    "glm_moe_dsa": "zai-org/GLM-5",
    "gpt-oss": "ggml-org/gpt-oss-20b-GGUF",
    "gpt2": "openai-community/gpt2",
    "gpt_bigcode": "bigcode/starcoderbase-1b",
    "gpt_neo": "EleutherAI/gpt-neo-125m",
    "gpt_neox": "EleutherAI/pythia-160m",
    "gpt_oss": "openai/gpt-oss-20b",
    "granite": "ibm-granite/granite-3.3-2b-instruct",
    "granite_speech": "ibm-granite/granite-speech-3.3-2b",
    "granite_swa": "ibm-granite/granite-swash-2b",
    "granitemoe": "ibm-granite/granite-3.1-1b-a400m-instruct",
    "granitemoehybrid": "ibm-granite/granite-4.0-h-tiny",
    "granitemoeshared": "ibm-research/moe-7b-1b-active-shared-experts",
    "helium": "kyutai/helium-1-2b",
    "hunyuan_v1_dense": "tencent/Hunyuan-0.5B-Instruct",
    "idefics3": "HuggingFaceM4/Idefics3-8B-Llama3",
    "internlm3": "internlm/internlm3-8b-instruct",
    "internvl": "OpenGVLab/InternVL3-1B-hf",
    "jais2": "inceptionai/Jais-2-8B-Chat",
    "lfm2": "LiquidAI/LFM2-1.2B",
    "lfm2_moe": "LiquidAI/LFM2-8B-A1B",
    "lfm2_vl": "LiquidAI/LFM2-VL-450M",
    "lfm3": "LiquidAI/LFM3-1.7B",
    "llama": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "llava": "llava-hf/llava-1.5-7b-hf",
    "llava_next": "llava-hf/llava-v1.6-mistral-7b-hf",
    "llava_onevision": "llava-hf/llava-onevision-qwen2-0.5b-ov-hf",
    "m2m_100": "facebook/nllb-200-distilled-600M",
    "marian": "Helsinki-NLP/opus-mt-en-de",
    "mbart": "facebook/mbart-large-50-many-to-many-mmt",
    "minicpm3": "openbmb/MiniCPM3-4B",
    "ministral": "mistralai/Ministral-8B-Instruct-2410",
    "ministral3": "mistralai/Ministral-3-3B-Instruct-2512",
    "mistral": "mistralai/Mistral-7B-Instruct-v0.3",
    "mistral3": "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
    "mistral_large4": "mistralai/Mistral-Large-4-1T-A52B",
    "mixtral": "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "moonshine": "UsefulSensors/moonshine-tiny",
    "moonshine_streaming": "UsefulSensors/moonshine-streaming-tiny",
    "mt5": "google/mt5-small",
    "muse_glimmer": "meta-models/Muse-Glimmer-30B",
    "nemotron": "nvidia/Nemotron-Mini-4B-Instruct",
    "nemotron_h": "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
    "olmo": "allenai/OLMo-1B-hf",
    "olmo2": "allenai/OLMo-2-0425-1B-Instruct",
    "olmo3": "allenai/Olmo-3-7B-Instruct",
    "olmo_hybrid": "allenai/Olmo-Hybrid-7B",
    "olmoe": "allenai/OLMoE-1B-7B-0125-Instruct",
    "parakeet_ctc": "nvidia/parakeet-ctc-1.1b",
    "parakeet_rnnt": "nvidia/parakeet-rnnt-0.6b",
    "parakeet_tdt": "nvidia/parakeet-tdt-0.6b-v3",
    "pegasus": "google/pegasus-xsum",
    "phi": "microsoft/phi-2",
    "phi3": "microsoft/Phi-4-mini-instruct",
    "qwen2": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2_5_vl": "Qwen/Qwen2.5-VL-3B-Instruct",
    "qwen2_moe": "Qwen/Qwen1.5-MoE-A2.7B-Chat",
    "qwen2_vl": "Qwen/Qwen2-VL-2B-Instruct",
    "qwen3": "Qwen/Qwen3-0.6B",
    "qwen3_5": "Qwen/Qwen3.5-0.8B",
    "qwen3_5_moe": "Qwen/Qwen3.5-35B-A3B",
    "qwen3_asr": "Qwen/Qwen3-ASR-1.7B-hf",
    "qwen3_moe": "Qwen/Qwen3-30B-A3B",
    "qwen3_next": "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "qwen3_vl": "Qwen/Qwen3-VL-4B-Instruct",
    "qwen3_vl_moe": "Qwen/Qwen3-VL-30B-A3B-Instruct",
    "seed_oss": "ByteDance-Seed/Seed-OSS-36B-Instruct",
    "smollm3": "HuggingFaceTB/SmolLM3-3B",
    "smolvlm": "HuggingFaceTB/SmolVLM-256M-Instruct",
    "stablelm": "stabilityai/stablelm-2-1_6b-chat",
    "starcoder2": "bigcode/starcoder2-3b",
    "t5": "google/flan-t5-small",
    "t5gemma": "google/t5gemma-2b-2b-prefixlm-it",
    "t5gemma2": "google/t5gemma-2-270m-270m",
    "umt5": "google/umt5-small",
    "voxtral": "mistralai/Voxtral-Mini-3B-2507",
    "voxtral_realtime": "mistralai/Voxtral-Mini-4B-Realtime-2602",
    "whisper": "openai/whisper-base",
    "youtu": "tencent/Youtu-LLM-2B",
}
"""By the model type of configurations."""
