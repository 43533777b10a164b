"""onnxruntime-genai, from a folder that its model builder makes of a Hugging Face folder."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast_bench.backend import Backend, Continuer, Ticks, Tokens

# Products in int8, and the head on the last position only.
_OPTIONS = ("int4_accuracy_level=4", "int4_block_size=32", "prune_lm_head=true")


class OnnxRuntimeGenAI(Backend, Continuer):
    """int4, which its builder is made for."""

    packages = ("onnxruntime-genai", "onnxruntime", "transformers", "torch")
    modules = ("onnxruntime_genai",)
    settings = f"{', '.join(_OPTIONS)}, min_length = max_length"

    @override
    def files(self) -> Path:
        return self.model.made("genai-int4", self._build, self.packages)

    @override
    def load(self) -> None:
        import onnxruntime_genai

        config = onnxruntime_genai.Config(str(self.files()))
        session = {"intra_op_num_threads": self.model.threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        self.engine = onnxruntime_genai.Model(config)

    @override
    def generate(self, prompts: Sequence[Tokens], new: int, ticks: Ticks) -> list[Tokens]:
        import onnxruntime_genai

        length = len(prompts[0])
        params = onnxruntime_genai.GeneratorParams(self.engine)
        params.set_search_options(
            batch_size=len(prompts),
            min_length=length + new,
            max_length=length + new,
            do_sample=False,
        )
        generator = onnxruntime_genai.Generator(self.engine, params)
        generator.append_tokens(np.array(prompts, np.int32))
        for _ in range(new):
            generator.generate_next_token()
            ticks.tick()
        return [generator.get_sequence(row)[length:].tolist() for row in range(len(prompts))]

    def _build(self, folder: Path) -> None:
        builder = (sys.executable, "-m", "onnxruntime_genai.models.builder")
        paths = ("-i", str(self.model.hugging_face()), "-o", str(folder))
        with tempfile.TemporaryDirectory() as cache:
            kind = ("-p", "int4", "-e", "cpu", "-c", cache, "--extra_options", *_OPTIONS)
            built = subprocess.run(  # noqa: S603 - an installed package, and paths of our own
                (*builder, *paths, *kind), capture_output=True, text=True, check=False
            )
        if built.returncode:
            raise KvcastError(f"its builder failed: {built.stderr.strip().splitlines()[-1:]}")
