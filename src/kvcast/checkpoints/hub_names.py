"""Names that other programs have for published models, each with its hub id.

Speech: `whisper.available_models()` of openai-whisper, and faster-whisper's of Distil-Whisper.
Text: Ollama's, `name` or `name:size`.
"""

from collections.abc import Mapping

_WHISPERS = (
    *("tiny.en", "tiny", "base.en", "base", "small.en", "small", "medium.en", "medium"),
    *("large-v1", "large-v2", "large-v3", "large-v3-turbo"),
)
_DISTILLED = ("small.en", "medium.en", "large-v2", "large-v3", "large-v3.5")
SPEECH: Mapping[str, str] = {
    **{name: f"openai/whisper-{name}" for name in _WHISPERS},
    # The hub's openai/whisper-large is the first one, and `large` in openai-whisper the latest.
    "large-v1": "openai/whisper-large",
    "large": "openai/whisper-large-v3",
    "turbo": "openai/whisper-large-v3-turbo",
    **{f"distil-{name}": f"distil-whisper/distil-{name}" for name in _DISTILLED},
    "parakeet-tdt-0.6b-v3": "nvidia/parakeet-tdt-0.6b-v3",
}
_SIZED: Mapping[str, Mapping[str, str]] = {  # the first size is also the name's without one
    "qwen3": {
        "8b": "Qwen/Qwen3-8B",
        **{f"{size}b": f"Qwen/Qwen3-{size}B" for size in ("0.6", "1.7", "4", "14", "32")},
        "30b": "Qwen/Qwen3-30B-A3B",
    },
    "qwen2.5": {
        f"{size}b": f"Qwen/Qwen2.5-{size}B-Instruct" for size in ("7", "0.5", "1.5", "3", "14")
    },
    "llama3.2": {f"{size}b": f"meta-llama/Llama-3.2-{size}B-Instruct" for size in ("3", "1")},
    "llama3.1": {"8b": "meta-llama/Llama-3.1-8B-Instruct"},
    "gemma3": {size: f"google/gemma-3-{size}-it" for size in ("4b", "270m", "1b", "12b")},
    "gemma2": {size: f"google/gemma-2-{size}-it" for size in ("9b", "2b")},
    "smollm2": {
        size: f"HuggingFaceTB/SmolLM2-{size.upper()}-Instruct" for size in ("1.7b", "360m", "135m")
    },
    "mistral": {"7b": "mistralai/Mistral-7B-Instruct-v0.3"},
    "phi4-mini": {"3.8b": "microsoft/Phi-4-mini-instruct"},
    "gpt-oss": {"20b": "openai/gpt-oss-20b"},
    "granite3.3": {size: f"ibm-granite/granite-3.3-{size}-instruct" for size in ("8b", "2b")},
    "tinyllama": {"1.1b": "TinyLlama/TinyLlama-1.1B-Chat-v1.0"},
    "deepseek-r1": {
        "8b": "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B",
        "1.5b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    },
}
TEXT: Mapping[str, str] = {
    **{name: next(iter(sizes.values())) for name, sizes in _SIZED.items()},
    **{f"{name}:{size}": hub for name, sizes in _SIZED.items() for size, hub in sizes.items()},
}
DEFAULTS = {"transcribe": SPEECH["base"], "generate": TEXT["qwen3:0.6b"]}
"""What is offered, by task, where there is no model."""


def hub_id_of(name: str) -> str | None:
    """Return the hub id of a usual name, in any case, with or without Whisper's own before it."""
    spelt = name.lower()
    return SPEECH.get(spelt.removeprefix("whisper-")) or TEXT.get(spelt)
