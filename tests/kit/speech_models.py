"""A random model of every type of speech beside Whisper, as a folder on disk."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kit.audio_decoders import (
    random_audio_decoder,
    random_granite_speech,
    random_voxtral_realtime,
    save_audio_decoder,
)
from kit.random_conformers import random_conformer, save_conformer
from kit.random_moonshines import random_moonshine, save_moonshine

Making = tuple[Callable[[], Any], Callable[[Any, Path], Path]]

SPEECH: Mapping[str, Making] = {
    "qwen3_asr": (partial(random_audio_decoder, "qwen3_asr"), save_audio_decoder),
    "voxtral": (partial(random_audio_decoder, "voxtral"), save_audio_decoder),
    "voxtral_realtime": (random_voxtral_realtime, save_audio_decoder),
    "granite_speech": (random_granite_speech, save_audio_decoder),
    "moonshine": (partial(random_moonshine, "moonshine"), save_moonshine),
    "moonshine_streaming": (partial(random_moonshine, "streaming"), save_moonshine),
    **{
        kind: (partial(random_conformer, kind, seed=7), save_conformer)
        for kind in ("canary", "cohere_asr", "parakeet_ctc", "parakeet_rnnt", "parakeet_tdt")
    },
}
"""By type: makes a model of transformers, and saves it."""


def speech_folder(kind: str, folder: Path) -> Path:
    """Save a model of a type as a whole Hugging Face folder."""
    make, save = SPEECH[kind]
    return save(make(), folder)
