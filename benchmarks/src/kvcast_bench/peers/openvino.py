"""OpenVINO GenAI, from folders that optimum-intel makes of Hugging Face folders.

Both are in a separate environment.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.machine.resources import instruction_sets
from kvcast.whisper.tokenizer import WhisperTokenizer
from kvcast_bench.backend import Backend, Continuer, Samples, Ticks, Tokens, Transcriber
from kvcast_bench.peers.rules import generation_rules

PRECISION = "bf16" if {"avx512_bf16", "amx_bf16"} & set(instruction_sets()) else "f32"
_PROPERTIES = f"INFERENCE_PRECISION_HINT {PRECISION}, PERFORMANCE_HINT LATENCY"
_BATCH = 8192
_WEIGHTS: Mapping[str, tuple[str, ...]] = {
    "int8": ("int8",),
    "int4": ("int4", "--group-size", "32", "--all-layers"),
}
"""optimum-intel's options for weights, by kind.

Symmetric int4 is a tenth faster, but changes SmolLM2's texts.
"""


class _OpenVINO(Backend):
    packages = ("openvino-genai", "openvino", "optimum-intel", "transformers", "torch")
    modules = ("openvino_genai",)
    environment = "KVCAST_BENCH_OPENVINO"
    task: ClassVar[str]  # optimum's name of it

    @override
    def files(self) -> Path:
        return self.model.made(f"openvino-{self.kind}", self._convert, self.packages)

    @property
    def _properties(self) -> dict[str, Any]:
        return {
            "INFERENCE_NUM_THREADS": self.model.threads,
            "INFERENCE_PRECISION_HINT": PRECISION,
            "PERFORMANCE_HINT": "LATENCY",
        }

    def _convert(self, folder: Path) -> None:
        command = (sys.executable, "-m", "optimum.commands.optimum_cli", "export", "openvino")
        options = ("--task", self.task, "--weight-format", *_WEIGHTS[self.kind])
        paths = ("--model", str(self.model.hugging_face()), str(folder))
        converted = subprocess.run(  # noqa: S603 - an installed package, and paths of our own
            (*command, *options, *paths), capture_output=True, text=True, check=False
        )
        if converted.returncode:
            raise KvcastError(f"optimum failed: {converted.stderr.strip().splitlines()[-1:]}")


class CausalOpenVINO(_OpenVINO, Continuer):
    """Its pipeline for several texts at once, which is its default for one as well."""

    settings = (
        f"{_PROPERTIES}, DYNAMIC_QUANTIZATION_GROUP_SIZE 64 in int8 without AMX, "
        f"max_num_batched_tokens {_BATCH} (whole prompts, together), no prefix cache"
    )
    task = "text-generation-with-past"

    @property
    @override
    def _properties(self) -> dict[str, Any]:
        # Prompts take a tenth to a sixth less in int8, and a fifth more in int4, whose weights have
        # groups of 32; on AMX this was not tried.
        larger = self.kind == "int8" and "amx_int8" not in instruction_sets()
        return super()._properties | ({"DYNAMIC_QUANTIZATION_GROUP_SIZE": "64"} if larger else {})

    @override
    def load(self) -> None:
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = _BATCH
        self.engine = openvino_genai.ContinuousBatchingPipeline(
            self.files(), scheduler, "CPU", self._properties
        )

    @override
    def generate(self, prompts: Sequence[Tokens], new: int, ticks: Ticks) -> list[Tokens]:
        import openvino
        import openvino_genai

        greedy = openvino_genai.GenerationConfig(
            max_new_tokens=new, ignore_eos=True, do_sample=False
        )
        handles = [
            self.engine.add_request(row, openvino.Tensor(np.array([prompt], np.int64)), greedy)
            for row, prompt in enumerate(prompts)
        ]
        texts: list[Tokens] = [[] for _ in prompts]
        while self.engine.has_non_finished_requests():
            self.engine.step()
            for handle, text in zip(handles, texts, strict=True):
                if handle.can_read():
                    for output in handle.read().values():
                        text.extend(output.generated_ids)
            ticks.reach(texts)
        return texts


class WhisperOpenVINO(_OpenVINO, Transcriber):
    settings = _PROPERTIES
    task = "automatic-speech-recognition-with-past"

    @override
    def load(self) -> None:
        import openvino_genai

        self.engine = openvino_genai.WhisperPipeline(self.files(), "CPU", **self._properties)

    @override
    def transcribe(self, samples: Samples, language: str, beam: int) -> str:
        config = self.engine.get_generation_config()
        if config.is_multilingual:
            config.language, config.task = f"<|{language}|>", "transcribe"
        config.return_timestamps = True
        config.do_sample = False
        config.num_beams = beam
        return str(self.engine.generate(samples, config).texts[0])

    @override
    def _convert(self, folder: Path) -> None:
        super()._convert(folder)
        checkpoint = self.model.checkpoint()
        words, sizes = checkpoint.text["tokenizer.json"], checkpoint.dimensions
        rules = generation_rules(WhisperTokenizer(words, sizes.vocab_size))
        (folder / "generation_config.json").write_text(json.dumps(rules), encoding="utf-8")
