"""CTranslate2, from a folder that its converter makes of a Hugging Face folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvcast.bench.contender import made_beside
from kvcast.bench.precision import INT8
from kvcast.bench.text.peers.base import Task, Tick
from kvcast.bench.text.trials import Tokens


class CTranslate2:
    """int8 is its fastest on a CPU."""

    name = "ctranslate2-int8"
    packages = ("ctranslate2", "transformers", "torch")
    modules = ("ctranslate2",)
    settings = "beam 1, prompts forwarded at once, min_length = max_length"
    precision = INT8
    dtype = "int8 weights, fp32 attention and cache"

    def __init__(self, task: Task) -> None:
        self._task = task
        self._model: Any = None
        self._words: list[str] = []

    def unfit(self) -> str | None:
        """See the protocol."""
        return self._task.unlike_hugging_face()

    def prepare(self) -> None:
        """Convert."""
        folder = self._folder
        if not folder.is_dir():
            from ctranslate2.converters import TransformersConverter

            source = self._task.hugging_face()
            with made_beside(folder) as beside:
                TransformersConverter(str(source)).convert(str(beside), quantization="int8")

    def load(self) -> None:
        """See the protocol."""
        import ctranslate2

        self._model = ctranslate2.Generator(
            str(self._folder),
            device="cpu",
            compute_type="int8",
            inter_threads=1,
            intra_threads=self._task.threads,
        )
        vocabulary = (self._folder / "vocabulary.json").read_bytes()
        self._words = json.loads(vocabulary)

    def generate(self, prompts: Sequence[Tokens], new: int, tick: Tick) -> list[Tokens]:
        """See the protocol."""
        told = 0

        def on_token(_: Any) -> bool:
            nonlocal told
            told += 1
            if told % len(prompts) == 0:
                tick()
            return False

        found = self._model.generate_batch(
            [[self._words[token] for token in prompt] for prompt in prompts],
            beam_size=1,
            sampling_topk=1,
            min_length=new,
            max_length=new,
            include_prompt_in_result=False,
            callback=on_token,
        )
        return [list(result.sequences_ids[0]) for result in found]

    @property
    def _folder(self) -> Path:
        return self._task.made("ct2", self.packages)
