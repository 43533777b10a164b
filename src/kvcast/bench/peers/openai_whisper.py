"""openai-whisper: the original, in PyTorch, and its names, which whisper.cpp shares."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.bench.backend import Backend, Samples, Transcriber
from kvcast.bench.hugging_face import Tensors, transformers_tensors
from kvcast.spec.whisper import WhisperDimensions

# From transformers' names to openai-whisper's; the first that fits comes first.
_OPENAI = (
    ("encoder.embed_positions.weight", "encoder.positional_embedding"),
    ("decoder.embed_positions.weight", "decoder.positional_embedding"),
    ("embed_tokens", "token_embedding"),
    ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.layer_norm", "decoder.ln"),
    ("layers.", "blocks."),
    ("encoder_attn_layer_norm", "cross_attn_ln"),
    ("encoder_attn.", "cross_attn."),
    ("self_attn_layer_norm", "attn_ln"),
    ("self_attn.", "attn."),
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("out_proj", "out"),
    ("final_layer_norm", "mlp_ln"),
    ("fc1", "mlp.0"),
    ("fc2", "mlp.2"),
)


class OpenAIWhisper(Backend, Transcriber):
    """fp32: it knows nothing faster on a CPU."""

    packages = ("openai-whisper", "torch")
    modules = ("torch", "whisper")
    settings = "fp16=False"

    @override
    def load(self) -> None:
        import torch
        from whisper.model import ModelDimensions, Whisper

        torch.set_num_threads(self.model.threads)
        checkpoint = self.model.checkpoint()
        self.engine = Whisper(ModelDimensions(**openai_sizes(checkpoint.dimensions))).eval()
        self.engine.load_state_dict(
            {
                name: torch.from_numpy(np.array(tensor, np.float32))
                for name, tensor in openai_tensors(checkpoint.tensors)
            }
        )

    @override
    def transcribe(self, samples: Samples, language: str, beam: int) -> str:
        result = self.engine.transcribe(
            samples,
            language=language,
            beam_size=beam if beam > 1 else None,
            temperature=0.0,
            condition_on_previous_text=False,
            fp16=False,
            verbose=None,
        )
        return str(result["text"])


def openai_tensors(tensors: Mapping[str, NDArray[Any]]) -> Tensors:
    """Yield every tensor under openai-whisper's name, as `transformers_tensors` does."""
    for name, tensor in transformers_tensors(tensors):
        theirs = name
        for part, other in _OPENAI:
            theirs = theirs.replace(part, other)
        yield theirs, tensor


def openai_sizes(dimensions: WhisperDimensions) -> dict[str, int]:
    """Return openai-whisper's `ModelDimensions`, in the order of whisper.cpp's files."""
    return {
        "n_vocab": dimensions.vocab_size,
        "n_audio_ctx": dimensions.source_positions,
        "n_audio_state": dimensions.d_model,
        "n_audio_head": dimensions.encoder_heads,
        "n_audio_layer": dimensions.encoder_layers,
        "n_text_ctx": dimensions.target_positions,
        "n_text_state": dimensions.d_model,
        "n_text_head": dimensions.decoder_heads,
        "n_text_layer": dimensions.decoder_layers,
        "n_mels": dimensions.n_mels,
    }
