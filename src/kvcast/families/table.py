"""The table of model families."""

from collections.abc import Mapping
from typing import Any

from kvcast.errors import KvcastError
from kvcast.families.audio_decoder import AUDIO_DECODER
from kvcast.families.bart import BART
from kvcast.families.base import Family
from kvcast.families.canary import CANARY
from kvcast.families.decoder import DECODER
from kvcast.families.moonshine import MOONSHINE
from kvcast.families.parakeet import PARAKEET
from kvcast.families.t5 import T5
from kvcast.families.t5gemma import T5GEMMA
from kvcast.families.text_encoder import CROSS_ENCODER, TEXT_ENCODER
from kvcast.families.unilm import UNILM
from kvcast.families.whisper import WHISPER

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        WHISPER,
        DECODER,
        T5,
        UNILM,
        BART,
        AUDIO_DECODER,
        T5GEMMA,
        MOONSHINE,
        CANARY,
        PARAKEET,
        TEXT_ENCODER,
        CROSS_ENCODER,
    )
}


def family_of(name: str) -> Family:
    """KvcastError for an unknown name."""
    if name not in FAMILIES:
        raise KvcastError(f"this kvcast does not support {name} models: update it, or export again")
    return FAMILIES[name]


def family_with(dimensions: Any) -> Family:
    kind = type(dimensions)
    return next(family for family in FAMILIES.values() if family.dimensions is kind)
