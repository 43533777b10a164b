"""Hugging Face transformers, in PyTorch, without a hub; optimum-onnx with its `generate`."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from kvcast.audio.decode import SAMPLE_RATE
from kvcast.whisper.tokenizer import WhisperTokenizer
from kvcast_bench.backend import Backend, Continuer, Samples, Ticks, Tokens, Transcriber, Writer
from kvcast_bench.peers.rules import generation_rules

_WINDOW = 30 * SAMPLE_RATE


class _Transformers(Backend):
    packages: Sequence[str] = ("transformers", "torch")
    modules: Sequence[str] = ("torch", "transformers.models.auto.modeling_auto")
    auto: ClassVar[str]  # the library's class that opens a folder

    @override
    def files(self) -> Path:
        return self.model.hugging_face()

    @override
    def load(self) -> None:
        import torch
        import transformers

        torch.set_num_threads(self.model.threads)
        self.engine = getattr(transformers, self.auto).from_pretrained(
            self.files(), dtype=getattr(torch, self.kind), local_files_only=True
        )
        self.engine.eval()


class CausalTransformers(_Transformers, Continuer):
    """Its models' forward with their cache: `generate` would add Python overhead to every step."""

    settings = "scaled_dot_product_attention, forward in a loop, the head on the last position only"
    auto = "AutoModelForCausalLM"

    @override
    def generate(self, prompts: Sequence[Tokens], new: int, ticks: Ticks) -> list[Tokens]:
        import torch

        cache, chosen = None, []
        with torch.inference_mode():
            tokens = torch.tensor(prompts)
            for _ in range(new):
                output = self.engine(
                    tokens, past_key_values=cache, use_cache=True, logits_to_keep=1
                )
                cache = output.past_key_values
                tokens = output.logits[:, -1].argmax(-1, keepdim=True)
                chosen.append(tokens)
                ticks.tick()
        texts: list[Tokens] = torch.cat(chosen, dim=1).tolist()
        return texts


class Seq2seqTransformers(_Transformers, Writer):
    """`generate`, as its users call it."""

    settings = "generate, min_new_tokens = max_new_tokens, its own choice of attention"
    auto = "AutoModelForSeq2SeqLM"

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
        # The decoder start token comes first.
        targets: list[Tokens] = target_bs[:, 1:].tolist()
        return targets


class OptimumOnnx(Seq2seqTransformers):
    """`generate` over graphs for ONNX Runtime, quantised dynamically, a scale for each channel."""

    packages = ("optimum-onnx", "transformers", "torch", "onnxruntime")
    modules = ("torch", "onnxruntime", "optimum.onnxruntime")
    settings = "generate, min_new_tokens = max_new_tokens, a decoder with and one without a past"

    @override
    def files(self) -> Path:
        exported = self.model.made("optimum-fp32", self._export, self.packages)
        if self.kind == "fp32":
            return exported
        return self.model.made(
            "optimum-int8", lambda folder: _quantise(exported, folder), self.packages
        )

    @override
    def load(self) -> None:
        import onnxruntime
        import torch
        from optimum.onnxruntime import ORTModelForSeq2SeqLM

        torch.set_num_threads(self.model.threads)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.model.threads
        self.engine = ORTModelForSeq2SeqLM.from_pretrained(
            self.files(), session_options=options, use_merged=False
        )

    def _export(self, folder: Path) -> None:
        from optimum.onnxruntime import ORTModelForSeq2SeqLM

        ORTModelForSeq2SeqLM.from_pretrained(self.model.folder, export=True).save_pretrained(folder)


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
        self._tokenizer = WhisperTokenizer(checkpoint.text["tokenizer.json"], sizes.vocab_size)
        self.engine.generation_config = library.GenerationConfig(
            **generation_rules(self._tokenizer)
        )
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


def _quantise(exported: Path, folder: Path) -> None:
    from optimum.onnxruntime import ORTQuantizer
    from optimum.onnxruntime.configuration import AutoQuantizationConfig

    kind = AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=True)
    for graph in exported.glob("*.onnx"):
        quantizer = ORTQuantizer.from_pretrained(exported, file_name=graph.name)
        quantizer.quantize(save_dir=folder, file_suffix=None, quantization_config=kind)
    for settings in exported.glob("*.json"):
        shutil.copy(settings, folder)
