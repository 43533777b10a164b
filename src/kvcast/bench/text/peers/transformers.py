"""Hugging Face transformers, in PyTorch: its models' forward with their cache, without `generate`.

`generate` would add its own Python to every step.
"""

from collections.abc import Sequence
from typing import Any

from kvcast.bench.precision import FLOAT
from kvcast.bench.text.peers.base import Task, Tick
from kvcast.bench.text.trials import Tokens

_TORCH = {"bf16": "bfloat16", "fp32": "float32"}


class Transformers:
    """PyTorch's own attention, not compiled."""

    packages = ("transformers", "torch")
    modules = ("torch", "transformers.models.auto.modeling_auto")
    settings = "scaled_dot_product_attention, forward in a loop, the head on the last position only"
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
        """Write a Hugging Face folder."""
        self._task.hugging_face()

    def load(self) -> None:
        """See the protocol."""
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(self._task.threads)
        model: Any = AutoModelForCausalLM.from_pretrained(
            self._task.hugging_face(),
            dtype=getattr(torch, _TORCH[self.dtype]),
            attn_implementation="sdpa",
            local_files_only=True,
        )
        self._model = model.eval()

    def generate(self, prompts: Sequence[Tokens], new: int, tick: Tick) -> list[Tokens]:
        """See the protocol."""
        import torch

        cache, chosen = None, []
        with torch.inference_mode():
            tokens = torch.tensor(prompts)
            for _ in range(new):
                found = self._model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache = found.past_key_values
                tokens = found.logits[:, -1].argmax(-1, keepdim=True)
                chosen.append(tokens)
                tick()
        texts: list[Tokens] = torch.cat(chosen, dim=1).tolist()
        return texts
