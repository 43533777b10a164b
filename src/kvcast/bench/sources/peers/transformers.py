"""Hugging Face transformers, in PyTorch: `generate`, as its users call it."""

from collections.abc import Sequence
from typing import Any

from kvcast.bench.precision import FLOAT
from kvcast.bench.sources.peers.base import Task
from kvcast.bench.sources.trials import Tokens

_TORCH = {"bf16": "bfloat16", "fp32": "float32"}


class Transformers:
    """PyTorch's operators, not compiled."""

    packages = ("transformers", "torch")
    modules = ("torch", "transformers.models.auto.modeling_auto")
    settings = "generate, min_new_tokens = max_new_tokens, its own choice of attention"
    precision = FLOAT

    def __init__(self, task: Task, dtype: str) -> None:
        self._task = task
        self.name = f"transformers-{dtype}"
        self.dtype = dtype
        self._model: Any = None

    def unfit(self) -> str | None:
        """See the protocol."""
        return self._task.unlike_hugging_face()

    def prepare(self) -> None:
        """Do nothing: it reads the folder itself."""

    def load(self) -> None:
        """See the protocol."""
        import torch
        from transformers import AutoModelForSeq2SeqLM

        torch.set_num_threads(self._task.threads)
        model: Any = AutoModelForSeq2SeqLM.from_pretrained(
            self._task.folder, dtype=getattr(torch, _TORCH[self.dtype]), local_files_only=True
        )
        self._model = model.eval()

    def write(self, sources: Sequence[Tokens], beams: int, tokens: int) -> list[Tokens]:
        """See the protocol."""
        return hugging_face_targets(self._model, sources, beams, tokens)


def hugging_face_targets(
    model: Any, sources: Sequence[Tokens], beams: int, tokens: int
) -> list[Tokens]:
    """Call a model's `generate`; see `Contender.write`."""
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
