"""FLOPs that a KV cache saves, by a plain formula and by `kvcast inspect cost`.

The published count for Mistral 7B and 10,000 tokens, 4.29e17, is 16 times too high. It multiplies
by the width twice, where keys and values of 8 heads are 1,024 wide: 4 of the 16. And it has 2 T^2
positions for a text of T tokens, whose steps have T (T - 1) / 2 earlier ones.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from kvcast.inspect.cost import CostQuery, document, open_work
from kvcast_bench.sources.figures import Figures, prefixed

TOKENS = 10_000
RATE = 312e12
"""Operations a second that the published text divides by: an A100's in bf16."""
_CONFIGS = Path(__file__).parents[1] / "configs"


def published(layers: int, width: int, tokens: int) -> int:
    """Return the published count: the width twice, and all positions twice over."""
    return 2 * 2 * layers * width * width * 2 * tokens**2


def width_once(layers: int, width: int, key_width: int, tokens: int) -> int:
    """Return it with the first slip corrected: keys and values are narrower than the model."""
    return 2 * 2 * layers * width * key_width * 2 * tokens**2


def saved(layers: int, width: int, key_width: int, tokens: int) -> int:
    """Return the saved FLOPs: keys and values of all earlier positions, at each token."""
    return 2 * 2 * layers * width * key_width * (tokens * (tokens - 1) // 2)


def cross_projections(layers: int, width: int, source: int) -> int:
    """Return the FLOPs of projecting a source to cross-attention keys and values in all layers."""
    return 2 * 2 * layers * source * width * width


@cache
def mistral() -> tuple[Any, dict[str, Any]]:
    """Return Mistral 7B's dimensions, and the cost of a text."""
    model = open_work(str(_CONFIGS / "mistral-7b"))
    query = CostQuery(prompt=1, new=TOKENS)
    return model.dimensions, document("mistral-7b", model, query, None)


@cache
def turbo() -> tuple[Any, dict[str, Any]]:
    """Return whisper-large-v3-turbo's dimensions, and the cost of a step."""
    model = open_work(str(_CONFIGS / "whisper-large-v3-turbo"))
    query = CostQuery(prompt=1, new=2)
    return model.dimensions, document("whisper-large-v3-turbo", model, query, None)


def measure() -> Sequence[Figures]:
    """Return the counts of a text by Mistral 7B and of a step of turbo."""
    return [_text(), _step()]


def _text() -> Figures:
    of, costs = mistral()
    calls = costs["calls"]["all"]
    cached, recomputed = (calls[way]["flop"] for way in ("cached", "recomputed"))
    layers, width, key_width = len(of.windows), of.width, of.kv_heads * of.head_dim
    counted_saving = recomputed["keys_values"] - cached["keys_values"]
    rows = {
        "published: 8 · layers · width² · T²": published(layers, width, TOKENS),
        "the width once: 8 · layers · width · 1,024 · T²": width_once(
            layers, width, key_width, TOKENS
        ),
        "and earlier positions once: 4 · layers · width · 1,024 · T (T - 1) / 2": saved(
            layers, width, key_width, TOKENS
        ),
        "`kvcast inspect cost`: keys and values not projected again": counted_saving,
        "`kvcast inspect cost`: products with weights, if all is computed again": (
            recomputed["keys_values"] + recomputed["linear"]
        ),
        "`kvcast inspect cost`: everything, with a cache": cached["total"],
    }
    return Figures(
        head=["a text of T = 10,000 tokens", "FLOP", "s at 312 TFLOP/s"],
        rows=[[name, prefixed(flop), f"{flop / RATE:,.1f}"] for name, flop in rows.items()],
        note=f"Mistral 7B: {layers} layers, width {width:,}, {of.kv_heads} heads of keys and "
        f"values of {of.head_dim}.",
    )


def _step() -> Figures:
    of, costs = turbo()
    step = costs["calls"]["next"]
    cross = step["recomputed"]["flop"]["cross_keys_values"]
    rest = step["cached"]["flop"]["total"]
    formula = cross_projections(of.decoder_layers, of.d_model, of.source_positions)
    held = next(kind["bytes"] for kind in costs["cache"] if kind["kind"] == "cross")
    rows = {
        "cross keys and values: 4 · layers · 1,500 · width²": f"{formula / 1e9:.2f} GFLOP",
        "`kvcast inspect cost`: the same": f"{cross / 1e9:.2f} GFLOP",
        "`kvcast inspect cost`: the rest of a step": f"{rest / 1e9:.2f} GFLOP",
        "the first over the last": f"{cross / rest:.0f}",
        "the cross cache in bf16": f"{held / 2**20:.1f} MiB",
    }
    return Figures(
        head=["a step of whisper-large-v3-turbo", "count"],
        rows=[[name, count] for name, count in rows.items()],
        note=f"{of.decoder_layers} decoder layers, width {of.d_model:,}, "
        f"{of.source_positions:,} source positions.",
    )
