"""optimum-onnx: transformers' `generate` over graphs for ONNX Runtime that it exports itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvcast.bench.contender import made_beside
from kvcast.bench.precision import FLOAT, INT8
from kvcast.bench.sources.peers.base import Task
from kvcast.bench.sources.peers.transformers import hugging_face_targets
from kvcast.bench.sources.trials import Tokens

_PRECISIONS = {"int8": INT8, "fp32": FLOAT}
_DTYPES = {"int8": "int8 weights and products, fp32 attention and cache", "fp32": "fp32"}


class OptimumOnnx:
    """Its int8 is ONNX Runtime's dynamic quantisation, a scale for each channel."""

    packages = ("optimum-onnx", "transformers", "torch", "onnxruntime")
    modules = ("torch", "onnxruntime", "optimum.onnxruntime")
    settings = "generate, min_new_tokens = max_new_tokens, a decoder with and one without a past"

    def __init__(self, task: Task, kind: str) -> None:
        self._task = task
        self._kind = kind
        self.name = f"optimum-onnx-{kind}"
        self.precision = _PRECISIONS[kind]
        self.dtype = _DTYPES[kind]
        self._model: Any = None

    def unfit(self) -> str | None:
        """See the protocol."""
        return self._task.unlike_hugging_face()

    def prepare(self) -> None:
        """Export, and quantise what was exported."""
        self._exported()
        if self._kind == "int8" and not self._folder("int8").is_dir():
            self._quantise()

    def load(self) -> None:
        """See the protocol."""
        import onnxruntime
        import torch
        from optimum.onnxruntime import ORTModelForSeq2SeqLM

        torch.set_num_threads(self._task.threads)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._task.threads
        self._model = ORTModelForSeq2SeqLM.from_pretrained(
            self._folder(self._kind), session_options=options, use_merged=False
        )

    def write(self, sources: Sequence[Tokens], beams: int, tokens: int) -> list[Tokens]:
        """See the protocol."""
        return hugging_face_targets(self._model, sources, beams, tokens)

    def _exported(self) -> Path:
        folder = self._folder("fp32")
        if not folder.is_dir():
            from optimum.onnxruntime import ORTModelForSeq2SeqLM

            with made_beside(folder) as beside:
                model = ORTModelForSeq2SeqLM.from_pretrained(self._task.folder, export=True)
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
        return self._task.made(f"optimum-{kind}", self.packages)
