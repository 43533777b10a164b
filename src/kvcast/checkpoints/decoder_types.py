"""All model types of decoder-only models in Hugging Face layout.

Models with images have a row of their own where their decoder is one of their own. Knows no files.
"""

from collections.abc import Mapping

from kvcast.checkpoints.decoder_gemma_types import GEMMA_TYPES
from kvcast.checkpoints.decoder_hybrid_types import HYBRID_TYPES
from kvcast.checkpoints.decoder_layer_norm_types import LAYER_NORM_TYPES
from kvcast.checkpoints.decoder_llama_types import LLAMA_TYPES
from kvcast.checkpoints.decoder_type import DecoderType

TYPES: Mapping[str, DecoderType] = {
    **LLAMA_TYPES,
    **GEMMA_TYPES,
    **LAYER_NORM_TYPES,
    **HYBRID_TYPES,
}


# Models with images whose decoder is of any type, and that type where text_config names none.
WRAPPERS: Mapping[str, str] = {
    **dict.fromkeys(("llava", "llava_next", "idefics3", "smolvlm"), "llama"),
    **dict.fromkeys(("llava_onevision", "internvl"), "qwen2"),
    **dict.fromkeys(("aya_vision", "cohere2_vision"), "cohere2"),
    "lfm2_vl": "lfm2",
    "mistral3": "mistral",
}
