"""Transformer decoders with a KV cache, on several runtimes.

The public API is ``__all__`` of this module; everything else may change::

    import kvcast

    model = kvcast.load("demo", threads=2)
    for segment in model.transcribe("talk.flac", beam=5):
        print(segment.start, segment.end, segment.text)

    model = kvcast.load("demo-chat", threads=2)
    print(model.generate("The capital of France is", max_new_tokens=8).text)

    model = kvcast.load("demo-t5", threads=2)
    print(model.generate("3 March 2021").text)

Names are imported when they are first used, so ``import kvcast`` costs next to nothing.
"""

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

# ONNX Runtime sends telemetry about every opened model unless this is set before its import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from kvcast.decoding.grammar import Grammar
    from kvcast.engine.engine import Engine
    from kvcast.engine.model import Model
    from kvcast.errors import KvcastError
    from kvcast.loading.exporting import export_bundle
    from kvcast.loading.opening import load
    from kvcast.speech.live import LiveTranscription
    from kvcast.speech.transcription import Transcription
    from kvcast.text.model import TextModel
    from kvcast.text.session import TextSession
    from kvcast.text.text2text import BartModel, T5GemmaModel, T5Model, UnilmModel
    from kvcast.text.texts import TextGeneration
    from kvcast.transcripts.segments import Segment, Word
    from kvcast.whisper.language_detection import DetectedLanguage
    from kvcast.whisper.model import WhisperModel

__version__ = "0.2.0"

__all__ = [
    "BartModel",
    "DetectedLanguage",
    "Engine",
    "Grammar",
    "KvcastError",
    "LiveTranscription",
    "Model",
    "Segment",
    "T5GemmaModel",
    "T5Model",
    "TextGeneration",
    "TextModel",
    "TextSession",
    "Transcription",
    "UnilmModel",
    "WhisperModel",
    "Word",
    "__version__",
    "export_bundle",
    "load",
]

_HOMES = {
    "BartModel": "kvcast.text.text2text",
    "DetectedLanguage": "kvcast.whisper.language_detection",
    "Engine": "kvcast.engine.engine",
    "Grammar": "kvcast.decoding.grammar",
    "KvcastError": "kvcast.errors",
    "LiveTranscription": "kvcast.speech.live",
    "Model": "kvcast.engine.model",
    "Segment": "kvcast.transcripts.segments",
    "T5GemmaModel": "kvcast.text.text2text",
    "T5Model": "kvcast.text.text2text",
    "TextGeneration": "kvcast.text.texts",
    "TextModel": "kvcast.text.model",
    "TextSession": "kvcast.text.session",
    "Transcription": "kvcast.speech.transcription",
    "UnilmModel": "kvcast.text.text2text",
    "WhisperModel": "kvcast.whisper.model",
    "Word": "kvcast.transcripts.segments",
    "export_bundle": "kvcast.loading.exporting",
    "load": "kvcast.loading.opening",
}


_ELSEWHERE = ("load_model", "pipeline", "Llama", "LLM", "AutoModel", "AutoModelForCausalLM")


def __getattr__(name: str) -> Any:
    hint = "; kvcast.load opens every model" if name in _ELSEWHERE else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    """Return the public names, for tab completion and `help`; nothing is imported."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


class _Module(ModuleType):
    """Has the public names as properties, whose values tab completion does not read."""


def _imported_when_read(name: str, home: str) -> property:
    """Return the property of a public name, whose value a test or a user may replace."""

    def read(module: ModuleType) -> Any:
        replaced = vars(module)
        return replaced[name] if name in replaced else getattr(import_module(home), name)

    def replace(module: ModuleType, value: Any) -> None:
        vars(module)[name] = value

    def restore(module: ModuleType) -> None:
        if name not in vars(module):
            raise AttributeError(f"{name} cannot be deleted")
        del vars(module)[name]

    return property(read, replace, restore)


for _name, _home in _HOMES.items():
    setattr(_Module, _name, _imported_when_read(_name, _home))
sys.modules[__name__].__class__ = _Module
