"""optimum-onnx: transformers' `generate` over graphs for ONNX Runtime that it exports itself."""

import shutil
from pathlib import Path

from typing_extensions import override

from kvcast.bench.peers.transformers import Seq2seqTransformers


class OptimumOnnx(Seq2seqTransformers):
    """Its int8 is ONNX Runtime's dynamic quantisation, a scale for each channel."""

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


def _quantise(exported: Path, folder: Path) -> None:
    from optimum.onnxruntime import ORTQuantizer
    from optimum.onnxruntime.configuration import AutoQuantizationConfig

    kind = AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=True)
    for graph in exported.glob("*.onnx"):
        quantizer = ORTQuantizer.from_pretrained(exported, file_name=graph.name)
        quantizer.quantize(save_dir=folder, file_suffix=None, quantization_config=kind)
    for settings in exported.glob("*.json"):
        shutil.copy(settings, folder)
