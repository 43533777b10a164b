"""optimum-onnx: transformers' `generate` over graphs for ONNX Runtime that it exports itself."""

from collections.abc import Sequence
from pathlib import Path

from typing_extensions import override

from kvcast.bench.backend import Backend, Tokens, Writer
from kvcast.bench.models import made_beside
from kvcast.bench.peers.transformers import generated_targets


class OptimumOnnx(Backend, Writer):
    """Its int8 is ONNX Runtime's dynamic quantisation, a scale for each channel."""

    packages = ("optimum-onnx", "transformers", "torch", "onnxruntime")
    modules = ("torch", "onnxruntime", "optimum.onnxruntime")
    settings = "generate, min_new_tokens = max_new_tokens, a decoder with and one without a past"

    @override
    def unfit(self) -> str | None:
        return self.model.unlike_hugging_face()

    @override
    def prepare(self) -> None:
        self._exported()
        if self.kind == "int8" and not self._folder("int8").is_dir():
            self._quantise()

    @override
    def load(self) -> None:
        import onnxruntime
        import torch
        from optimum.onnxruntime import ORTModelForSeq2SeqLM

        torch.set_num_threads(self.model.threads)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.model.threads
        self.engine = ORTModelForSeq2SeqLM.from_pretrained(
            self._folder(self.kind), session_options=options, use_merged=False
        )

    @override
    def write(self, sources: Sequence[Tokens], beams: int, tokens: int) -> list[Tokens]:
        return generated_targets(self.engine, sources, beams, tokens)

    def _exported(self) -> Path:
        folder = self._folder("fp32")
        if not folder.is_dir():
            from optimum.onnxruntime import ORTModelForSeq2SeqLM

            with made_beside(folder) as beside:
                model = ORTModelForSeq2SeqLM.from_pretrained(self.model.folder, export=True)
                model.save_pretrained(beside)
        return folder

    def _quantise(self) -> None:
        from optimum.onnxruntime import ORTQuantizer
        from optimum.onnxruntime.configuration import AutoQuantizationConfig

        kind = AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=True)
        exported = self._exported()
        with made_beside(self._folder("int8")) as beside:
            for graph in exported.glob("*.onnx"):
                quantizer = ORTQuantizer.from_pretrained(exported, file_name=graph.name)
                quantizer.quantize(save_dir=beside, file_suffix=None, quantization_config=kind)
            for settings in exported.glob("*.json"):
                (beside / settings.name).write_bytes(settings.read_bytes())

    def _folder(self, kind: str) -> Path:
        return self.model.made(f"optimum-{kind}", self.packages)
