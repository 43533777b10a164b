"""Hugging Face transformers, in PyTorch, without a hub."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from kvcast.audio.decode import SAMPLE_RATE
from kvcast.bench.backend import Backend, Continuer, Samples, Ticks, Tokens, Transcriber, Writer
from kvcast.text.whisper import WhisperTokenizer

_WINDOW = 30 * SAMPLE_RATE


class _Transformers(Backend):
    packages: Sequence[str] = ("transformers", "torch")
    modules: Sequence[str] = ("torch", "transformers.models.auto.modeling_auto")
    auto: ClassVar[str]  # the library's class that opens a folder
    options: ClassVar[Mapping[str, str]] = {"attn_implementation": "sdpa"}

    @override
    def files(self) -> Path:
        return self.model.hugging_face()

    @override
    def load(self) -> None:
        import torch
        import transformers

        torch.set_num_threads(self.model.threads)
        self.engine = getattr(transformers, self.auto).from_pretrained(
            self.files(), dtype=getattr(torch, self.kind), local_files_only=True, **self.options
        )
        self.engine.eval()


class CausalTransformers(_Transformers, Continuer):
    """Its models' forward with their cache: `generate` would add its own Python to every step."""

    settings = "scaled_dot_product_attention, forward in a loop, the head on the last position only"
    auto = "AutoModelForCausalLM"

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

    settings = "generate, min_new_tokens = max_new_tokens, its own choice of attention"
    auto = "AutoModelForSeq2SeqLM"
    options: ClassVar[Mapping[str, str]] = {}

    @override
    def write(self, sources: Sequence[Tokens], beams: int, tokens: int) -> list[Tokens]:
        import torch

        source_bt = torch.tensor(sources)
        with torch.inference_mode():
            target_bs = self.engine.generate(
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


class WhisperTransformers(_Transformers, Transcriber):
    """bf16 is its fastest on a CPU with matrix instructions, with PyTorch's own attention."""

    modules = (
        "torch",
        "transformers.generation.configuration_utils",
        "transformers.models.whisper.feature_extraction_whisper",
        "transformers.models.whisper.modeling_whisper",
    )
    settings = "scaled_dot_product_attention"
    auto = "WhisperForConditionalGeneration"

    @override
    def load(self) -> None:
        import transformers

        super().load()
        library: Any = transformers  # much of it is untyped
        checkpoint = self.model.checkpoint()
        sizes = checkpoint.dimensions
        self._tokenizer = WhisperTokenizer(checkpoint.tokenizer_json, sizes.vocab_size)
        self._extractor = library.WhisperFeatureExtractor(feature_size=sizes.n_mels)

    @override
    def transcribe(self, samples: Samples, language: str, beam: int) -> str:
        import torch

        is_long = len(samples) > _WINDOW
        padding = {"truncation": False, "padding": "longest"} if is_long else {}
        features = self._extractor(
            samples,
            sampling_rate=SAMPLE_RATE,
            return_tensors="pt",
            return_attention_mask=True,
            **padding,
        )
        spoken = {"language": language, "task": "transcribe"}
        with torch.inference_mode():
            tokens = self.engine.generate(
                features.input_features.to(self.engine.dtype),
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
