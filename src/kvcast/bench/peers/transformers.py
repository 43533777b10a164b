"""Hugging Face transformers, in PyTorch, without a hub."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from kvcast.bench.backend import Backend, Continuer, Samples, Ticks, Tokens, Transcriber, Writer
from kvcast.bench.files.whisper_names import transformers_tensors
from kvcast.checkpoints.huggingface import DIMENSIONS
from kvcast.spec.whisper import WhisperDimensions
from kvcast.text.whisper import WhisperTokenizer

_SAMPLE_RATE = 16_000
_WINDOW = 30 * _SAMPLE_RATE


class _Transformers(Backend):
    packages = ("transformers", "torch")
    auto: ClassVar[str]  # the library's class that opens a folder

    @override
    def unfit(self) -> str | None:
        return self.model.unlike_hugging_face()

    @override
    def prepare(self) -> None:
        self.model.hugging_face()

    def _open(self, **settings: Any) -> None:
        import torch
        import transformers

        torch.set_num_threads(self.model.threads)
        self.engine = getattr(transformers, self.auto).from_pretrained(
            self.model.hugging_face(),
            dtype=getattr(torch, self.kind),
            local_files_only=True,
            **settings,
        )
        self.engine.eval()


class CausalTransformers(_Transformers, Continuer):
    """Its models' forward with their cache: `generate` would add its own Python to every step."""

    modules = ("torch", "transformers.models.auto.modeling_auto")
    settings = "scaled_dot_product_attention, forward in a loop, the head on the last position only"
    auto = "AutoModelForCausalLM"

    @override
    def load(self) -> None:
        self._open(attn_implementation="sdpa")

    @override
    def generate(self, prompts: Sequence[Tokens], new: int, ticks: Ticks) -> list[Tokens]:
        import torch

        cache, chosen = None, []
        with torch.inference_mode():
            tokens = torch.tensor(prompts)
            for _ in range(new):
                found = self.engine(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache = found.past_key_values
                tokens = found.logits[:, -1].argmax(-1, keepdim=True)
                chosen.append(tokens)
                ticks.tick()
        texts: list[Tokens] = torch.cat(chosen, dim=1).tolist()
        return texts


class Seq2seqTransformers(_Transformers, Writer):
    """`generate`, as its users call it."""

    modules = ("torch", "transformers.models.auto.modeling_auto")
    settings = "generate, min_new_tokens = max_new_tokens, its own choice of attention"
    auto = "AutoModelForSeq2SeqLM"

    @override
    def load(self) -> None:
        self._open()

    @override
    def write(self, sources: Sequence[Tokens], beams: int, tokens: int) -> list[Tokens]:
        return generated_targets(self.engine, sources, beams, tokens)


def generated_targets(
    model: Any, sources: Sequence[Tokens], beams: int, tokens: int
) -> list[Tokens]:
    """Call a model's `generate`; see `Writer.write`."""
    import torch

    source_bt = torch.tensor(sources)
    with torch.inference_mode():
        target_bs = model.generate(
            input_ids=source_bt,
            attention_mask=torch.ones_like(source_bt),
            num_beams=beams,
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
        )
    # What a target begins with comes first.
    targets: list[Tokens] = target_bs[:, 1:].tolist()
    return targets


class WhisperTransformers(Backend, Transcriber):
    """bf16 is its fastest on a CPU with matrix instructions, with PyTorch's own attention."""

    packages = ("transformers", "torch")
    modules = (
        "torch",
        "transformers.generation.configuration_utils",
        "transformers.models.whisper.feature_extraction_whisper",
        "transformers.models.whisper.modeling_whisper",
    )
    settings = "scaled_dot_product_attention"

    @override
    def load(self) -> None:
        import torch
        import transformers

        library: Any = transformers  # much of it is untyped
        torch.set_num_threads(self.model.threads)
        checkpoint = self.model.checkpoint()
        sizes: WhisperDimensions = checkpoint.dimensions
        self._tokenizer = WhisperTokenizer(checkpoint.tokenizer_json, sizes.vocab_size)
        steering = _steering(self._tokenizer)
        config = library.WhisperConfig(
            **{theirs: getattr(sizes, ours) for ours, theirs in DIMENSIONS.items()},
            **steering,
            encoder_ffn_dim=4 * sizes.d_model,
            decoder_ffn_dim=4 * sizes.d_model,
            attn_implementation="sdpa",
        )
        with torch.device("meta"):
            model = library.WhisperForConditionalGeneration(config)
        state = {
            f"model.{name}": torch.from_numpy(np.array(tensor, np.float32)).to(torch.bfloat16)
            for name, tensor in transformers_tensors(checkpoint.tensors)
        }
        model.load_state_dict(state, strict=False, assign=True)
        model.tie_weights()
        model.generation_config = library.GenerationConfig(**steering, **_rules(self._tokenizer))
        self.engine = model.eval()
        self._extractor: Any = library.WhisperFeatureExtractor(feature_size=sizes.n_mels)

    @override
    def transcribe(self, samples: Samples, language: str, beam: int) -> str:
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
        spoken = {"language": language, "task": "transcribe"}
        with torch.inference_mode():
            tokens = self.engine.generate(
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
