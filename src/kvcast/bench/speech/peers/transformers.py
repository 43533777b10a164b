"""Hugging Face transformers, in PyTorch, without a hub."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kvcast.bench.contender import needs_checkpoint
from kvcast.bench.speech.names import transformers_tensors
from kvcast.bench.speech.peers.base import Samples, Task
from kvcast.checkpoints.base import WhisperCheckpoint
from kvcast.text.whisper import WhisperTokenizer

_WINDOW = 30 * 16_000
_SAMPLE_RATE = 16_000
_MODULES = (
    "torch",
    "transformers.generation.configuration_utils",
    "transformers.models.whisper.feature_extraction_whisper",
    "transformers.models.whisper.modeling_whisper",
)


class Transformers:
    """bf16 is its fastest on a CPU with matrix instructions, with PyTorch's own attention."""

    name: ClassVar[str] = "transformers"
    packages: ClassVar[tuple[str, ...]] = ("transformers", "torch")
    modules: ClassVar[tuple[str, ...]] = _MODULES
    settings: ClassVar[str] = "scaled_dot_product_attention"
    dtype = "bf16"

    def __init__(self, task: Task) -> None:
        self._task = task
        self._model: Any = None
        self._extractor: Any = None

    def unfit(self) -> str | None:
        """See the protocol."""
        return needs_checkpoint(Path(self._task.folder))

    def prepare(self) -> None:
        """Nothing to make."""

    def load(self) -> None:
        """See the protocol."""
        import torch

        torch.set_num_threads(self._task.threads)
        library = _library()
        checkpoint = self._task.checkpoint()
        vocab_size = checkpoint.dimensions.vocab_size
        self._tokenizer = WhisperTokenizer(checkpoint.tokenizer_json, vocab_size)
        steering = _steering(self._tokenizer)
        config = library.WhisperConfig(**_sizes(checkpoint), **steering, attn_implementation="sdpa")
        with torch.device("meta"):
            model: Any = library.WhisperForConditionalGeneration(config)
        state = {
            f"model.{name}": torch.from_numpy(np.array(tensor, np.float32)).to(torch.bfloat16)
            for name, tensor in transformers_tensors(checkpoint.tensors)
        }
        model.load_state_dict(state, strict=False, assign=True)
        model.tie_weights()
        model.generation_config = library.GenerationConfig(**steering, **_rules(self._tokenizer))
        self._model = model.eval()
        self._extractor = library.WhisperFeatureExtractor(feature_size=checkpoint.dimensions.n_mels)

    def transcribe(self, samples: Samples, beam: int) -> str:
        """See the protocol."""
        import torch

        is_long = len(samples) > _WINDOW
        padding = {"truncation": False, "padding": "longest"} if is_long else {}
        features = self._extractor(
            samples,
            sampling_rate=_SAMPLE_RATE,
            return_tensors="pt",
            return_attention_mask=True,
            **padding,
        )
        spoken = {"language": self._task.language, "task": "transcribe"}
        with torch.inference_mode():
            tokens = self._model.generate(
                features.input_features.to(torch.bfloat16),
                attention_mask=features.attention_mask,
                return_timestamps=True,
                num_beams=beam,
                do_sample=False,
                temperature=0.0,
                condition_on_prev_tokens=False,
                **(spoken if self._tokenizer.is_multilingual else {}),
            )
        first = self._tokenizer.eot
        return self._tokenizer.decode(token for token in tokens[0].tolist() if token < first)


def _library() -> Any:
    """Return the package; much of it is untyped."""
    import transformers

    return transformers


def _sizes(checkpoint: WhisperCheckpoint) -> dict[str, int]:
    sizes = checkpoint.dimensions
    return {
        "num_mel_bins": sizes.n_mels,
        "vocab_size": sizes.vocab_size,
        "d_model": sizes.d_model,
        "encoder_layers": sizes.encoder_layers,
        "encoder_attention_heads": sizes.encoder_heads,
        "encoder_ffn_dim": 4 * sizes.d_model,
        "decoder_layers": sizes.decoder_layers,
        "decoder_attention_heads": sizes.decoder_heads,
        "decoder_ffn_dim": 4 * sizes.d_model,
        "max_source_positions": sizes.source_positions,
        "max_target_positions": sizes.target_positions,
    }


def _steering(tokenizer: WhisperTokenizer) -> dict[str, int]:
    """Return the ids that configuration and generation share."""
    return {
        "decoder_start_token_id": tokenizer.sot,
        "bos_token_id": tokenizer.eot,
        "eos_token_id": tokenizer.eot,
        "pad_token_id": tokenizer.eot,
    }


def _rules(tokenizer: WhisperTokenizer) -> dict[str, Any]:
    """Return what generation_config.json of a published Whisper holds beside."""
    suppressed = sorted({*tokenizer.non_speech_tokens, *tokenizer.control_tokens})
    rules = {
        "suppress_tokens": suppressed,
        "begin_suppress_tokens": list(tokenizer.blank),
        "no_timestamps_token_id": tokenizer.no_timestamps,
        "max_initial_timestamp_index": 50,
        "prev_sot_token_id": tokenizer.sot_prev,
        "is_multilingual": tokenizer.is_multilingual,
        "return_timestamps": True,
        "max_length": 448,
    }
    if tokenizer.is_multilingual:
        codes = zip(tokenizer.languages, tokenizer.language_tokens, strict=True)
        rules["lang_to_id"] = {f"<|{code}|>": token for code, token in codes}
        rules["task_to_id"] = {
            "transcribe": tokenizer.transcribe,
            "translate": tokenizer.translate,
        }
    return rules
