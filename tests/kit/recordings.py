"""Where the recordings are, and how the fixtures that transcribe them are typed."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

import kvcast
from kit.audio_decoders import (
    random_audio_decoder,
    random_granite_speech,
    random_voxtral_realtime,
    save_audio_decoder,
)
from kit.random_conformers import random_conformer, save_conformer
from kit.random_moonshines import random_moonshine, save_moonshine

TESTS = Path(__file__).parents[1]
EXAMPLE = TESTS.parent / "examples" / "sense-and-sensibility.flac"
CARDS = sorted((TESTS / "data" / "cards").glob("*.wav"))
SPOKEN = TESTS / "data" / "spoken.ogg"
GERMAN = TESTS / "data" / "german.ogg"
THREE_TURNS = TESTS / "data" / "three-turns.ogg"

Samples = NDArray[np.float32]
Load = Callable[..., kvcast.WhisperModel]


def read(path: Path) -> Samples:
    samples, rate = soundfile.read(path, dtype="float32")
    assert rate == 16000
    assert samples.ndim == 1
    return samples


def told(transcripts: Sequence[Sequence[Any]]) -> list[list[tuple[Any, ...]]]:
    """The fields that must be equal; probabilities may differ by rounding."""
    return [
        [(s.id, s.seek, s.start, s.end, s.tokens, s.temperature) for s in segments]
        for segments in transcripts
    ]


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
