"""Folders in the layout of optimum-executorch, with random weights: `model.pte`.

As in that exporter's programs, `forward` takes tokens and positions and keeps static caches in
buffers; these are written by `index_put` and copied back, or in place by ExecuTorch's operators.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from kit.foreign_models import Llama
from kvcast.runtimes.executorch.methods import quiet


class StaticLlama(nn.Module):
    """A Llama with caches of all positions.

    `in_place`: caches are written by `llama::update_cache`. `stale`: queries see stale contents
    of later positions.
    """

    def __init__(self, model: Llama, seed: int, *, in_place: bool, stale: bool) -> None:
        super().__init__()
        self.sizes, self.in_place, self.stale = model, in_place, stale
        self.weights = {name: torch.from_numpy(part) for name, part in model.tensors(seed).items()}
        for name, part in self.weights.items():
            self.register_buffer(name.replace(".", "_"), part)
        cos, sin = (torch.from_numpy(table) for table in model.angles())
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))
        own = (1, model.positions, model.kv_heads, model.head_dim)
        shape = own if in_place else (own[0], own[2], own[1], own[3])
        for i in range(model.layers):
            self.register_buffer(f"key_{i}", torch.zeros(shape))
            self.register_buffer(f"value_{i}", torch.zeros(shape))

    def forward(self, input_ids: Tensor, cache_position: Tensor) -> Tensor:
        sizes, keys = self.sizes, torch.arange(self.sizes.positions)
        mask = keys[None] <= cache_position[:, None]
        if self.stale:
            last = cache_position[-1:]
            self.seen.copy_(torch.maximum(self.seen, last + 1))
            mask = mask | ((keys < self.seen) & (keys > last))[None]
        bias = torch.where(mask, 0.0, -1e9)
        x = self._weight("model.embed_tokens")[input_ids]
        angles = self.cos[cache_position][:, None], self.sin[cache_position][:, None]
        for i in range(sizes.layers):
            at = f"model.layers.{i}"
            h = self._norm(x, f"{at}.input_layernorm")
            q, k, v = (self._heads(self._linear(h, f"{at}.self_attn.{m}_proj")) for m in "qkv")
            q, k = _rotated(q, *angles), _rotated(k, *angles)
            attend = self._attend_in_place if self.in_place else self._attend
            mixed = attend(i, q, k, v, cache_position, bias).flatten(2)
            x = x + self._linear(mixed, f"{at}.self_attn.o_proj")
            h = self._norm(x, f"{at}.post_attention_layernorm")
            gate = nn.functional.silu(self._linear(h, f"{at}.mlp.gate_proj"))
            x = x + self._linear(gate * self._linear(h, f"{at}.mlp.up_proj"), f"{at}.mlp.down_proj")
        return self._linear(self._norm(x, "model.norm"), "lm_head")

    def _attend(self, i, q, k, v, places, bias):
        """Write caches by index and attend to all slots; arrays [1, s, heads, d]."""
        key, value = getattr(self, f"key_{i}"), getattr(self, f"value_{i}")
        key[:, :, places] = k.transpose(1, 2)
        value[:, :, places] = v.transpose(1, 2)
        groups = self.sizes.heads // self.sizes.kv_heads
        k, v = (
            part[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2) for part in (key, value)
        )
        scores = q.transpose(1, 2) @ k.transpose(2, 3) * self.sizes.head_dim**-0.5 + bias
        return (scores.softmax(-1) @ v).transpose(1, 2)

    def _attend_in_place(self, i, q, k, v, places, bias):
        del bias
        key, value = getattr(self, f"key_{i}"), getattr(self, f"value_{i}")
        begin = places[0].item()
        torch._check(begin >= 0)
        torch._check(begin < self.sizes.positions)
        torch.ops.llama.update_cache(k, key, begin)
        torch.ops.llama.update_cache(v, value, begin)
        return torch.ops.llama.custom_sdpa(q, key, value, begin, None, 0.0, True)

    def _weight(self, name: str) -> Tensor:
        return getattr(self, f"{name}.weight".replace(".", "_"))

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return nn.functional.linear(x, self._weight(name))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.sizes.head_dim))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.sizes.eps)
        return x * scale * self._weight(name)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def write_program(
    folder: Path, model: Llama, seed: int = 0, *, in_place: bool = False, stale: bool = False
) -> None:
    """Export and lower; takes some seconds."""
    with quiet():
        from executorch.exir import EdgeCompileConfig, to_edge
        from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401

        module = StaticLlama(model, seed, in_place=in_place, stale=stale).eval()
        tokens = torch.zeros((1, 5), dtype=torch.int64)
        length = torch.export.Dim("s", min=1, max=model.positions - 1)
        with torch.no_grad():
            exported = torch.export.export(
                module, (tokens, torch.arange(5)), dynamic_shapes=({1: length}, {0: length})
            )
        constants = {"get_max_seq_len": model.positions, "get_vocab_size": model.vocab}
        program = to_edge(
            exported,
            constant_methods=constants,
            compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
        ).to_executorch()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.pte").write_bytes(program.buffer)
