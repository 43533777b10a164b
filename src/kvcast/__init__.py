"""Transformer decoders with a key-value cache, on several runtimes.

The public surface is what this module names in ``__all__``; everything else may change::

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
from importlib import import_module
from typing import TYPE_CHECKING, Any

# ONNX Runtime tells Microsoft of every model that it opens, unless this is set before its import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from kvcast.decoding.grammar import Grammar
    from kvcast.decoding.texts import TextGeneration
    from kvcast.engine.engine import Engine
    from kvcast.errors import KvcastError
    from kvcast.tasks.exporting import export_bundle
    from kvcast.tasks.generate import TextModel, TextSession
    from kvcast.tasks.live import LiveTranscription
    from kvcast.tasks.loading import load
    from kvcast.tasks.model import WhisperModel
    from kvcast.tasks.sources import T5Model, UnilmModel
    from kvcast.tasks.transcribe import Segment, Transcription
    from kvcast.tasks.whisper.language import DetectedLanguage
    from kvcast.tasks.whisper.segments import Word

__version__ = "0.1.0"

__all__ = [
    "DetectedLanguage",
    "Engine",
    "Grammar",
    "KvcastError",
    "LiveTranscription",
    "Segment",
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
    "DetectedLanguage": "kvcast.tasks.whisper.language",
    "Engine": "kvcast.engine.engine",
    "Grammar": "kvcast.decoding.grammar",
    "KvcastError": "kvcast.errors",
    "LiveTranscription": "kvcast.tasks.live",
    "Segment": "kvcast.tasks.transcribe",
    "T5Model": "kvcast.tasks.sources",
    "TextGeneration": "kvcast.decoding.texts",
    "TextModel": "kvcast.tasks.generate",
    "TextSession": "kvcast.tasks.generate",
    "Transcription": "kvcast.tasks.transcribe",
    "UnilmModel": "kvcast.tasks.sources",
    "WhisperModel": "kvcast.tasks.model",
    "Word": "kvcast.tasks.whisper.segments",
    "export_bundle": "kvcast.tasks.exporting",
    "load": "kvcast.tasks.loading",
}


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(home), name)
