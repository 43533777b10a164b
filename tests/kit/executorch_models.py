"""Small random models that ExecuTorch supports; lowering one takes seconds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kit.dimensions import CROSS_BIASED_T5, MISTRAL, ROFORMER, SMALL, SMALL_T5
from kit.letters import VOCAB

FILE = "executorch/model.pte"  # in a bundle
WHISPER = replace(SMALL, vocab_size=2000, decoder_layers=1, alignment_heads=((0, 2), (0, 0)))
# A ring and a linear cache side by side.
MIXED = replace(MISTRAL, windows=(7, None), vocab_size=VOCAB)
MODELS: Mapping[str, Any] = {
    "whisper": WHISPER,
    "t5": replace(SMALL_T5, heads=2, decoder_layers=1),
    # The one with several layers of cross caches.
    "cross-biased t5": replace(CROSS_BIASED_T5, heads=2),
    "decoder": MIXED,
    "unilm": replace(ROFORMER, layers=1),
}
# Its difference from the other is two lines of a lowering.
CROSS_BIASED = pytest.param("cross-biased t5", marks=pytest.mark.slow)
