"""Draw the pictures of docs/concepts.md, from what is computed: `python scripts/pictures.py`.

Masks are what `kvcast inspect masks --svg` draws. With `--check` nothing is written; the exit code
is 1 if a picture is not what it would be.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kvcast.checkpoints.decoder.huggingface import decoder_dimensions
from kvcast.families.decoder import caches
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.inspect.masks import MaskedCalls, SourceAndTarget, draw, masks
from kvcast.inspect.schedule import Schedule

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
CONFIGS = Path(__file__).parents[1] / "tests" / "data" / "configs"
PARTS = {"keys": "#0072b2", "values": "#56b4e9", "latent": "#009e73", "rotated key": "#e69f00"}
PARTS["index key"] = "#cc79a7"
SIZES = {"vocab_size": 131_072, "hidden_size": 4096, "intermediate_size": 12_288}
SIZES |= {"num_hidden_layers": 1, "num_attention_heads": 32, "max_position_embeddings": 8192}
INDEXED = {"model_type": "deepseek_v32", **SIZES, "num_attention_heads": 128}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "Mistral 7B": json.loads((CONFIGS / "mistral-7b" / "config.json").read_text("utf-8")),
    "Mistral Small 4": {"model_type": "mistral4", **SIZES},
    "DeepSeek V3.2": INDEXED,
}
WIDTH, LEFT, BAR, SCALE = 1000, 140, 26, 0.38  # pixels, SCALE for each element


def masked(calls: MaskedCalls) -> str:
    return draw(calls.title(), list(masks(calls)))


def positions() -> str:
    """Draw the cached elements per position of one layer."""
    title = "KV cache elements per position and layer"
    body = [f'<text class="h" x="30" y="24">{title}</text>']
    for i, (part, colour) in enumerate(PARTS.items()):
        body.append(f'<rect x="{30 + 110 * i}" y="34" width="12" height="12" fill="{colour}"/>')
        body.append(f'<text x="{47 + 110 * i}" y="44">{part}</text>')
    for i, (model, config) in enumerate(MODELS.items()):
        x, y = float(LEFT), 64 + 36 * i
        body.append(f'<text class="q" x="{LEFT - 8}" y="{y + 17}">{model}</text>')
        for part, count in parts_of(decoder_dimensions(config, model)).items():
            width, colour = count * SCALE, PARTS[part]
            place = f'x="{x:.0f}" y="{y}" width="{width:.0f}" height="{BAR}"'
            body.append(f'<rect {place} fill="{colour}"><title>{part}: {count}</title></rect>')
            x += width
        total = sum(parts_of(decoder_dimensions(config, model)).values())
        body.append(f'<text x="{x + 8:.0f}" y="{y + 17}">{total:,}</text>')
    height = 64 + 36 * len(MODELS)
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    style = "text{font-family:sans-serif;font-size:11px;fill:#333}.h{font-size:12px;"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">\n'
        f"<title>{title}</title>\n<style>{style}font-weight:bold}}.q{{text-anchor:end}}</style>\n"
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def parts_of(dimensions: DecoderDimensions) -> Mapping[str, int]:
    """Return the cached elements per position of the first layer's KV cache, by part."""
    cache = caches(dimensions)[0]
    if cache.kind != "latent":
        return dict.fromkeys(("keys", "values"), cache.heads * cache.head_dim)
    counts = {"latent": cache.head_dim - cache.rotated, "rotated key": cache.rotated}
    return counts | ({"index key": cache.index} if cache.index else {})


PICTURES: Mapping[str, Callable[[], str]] = {
    "linear": partial(masked, Schedule.of((3,), window=None, chunk=2, new=2)),
    "ring": partial(masked, Schedule.of((4, 1, 3), window=3, chunk=2, new=5)),
    "written-first": partial(masked, Schedule.of((4,), window=3, chunk=2, new=2, capacity=4)),
    "unilm": partial(masked, SourceAndTarget(source=5, target=3)),
    "positions": positions,
}


def drawn(name: str) -> str:
    """Return a picture's SVG document."""
    return PICTURES[name]()


def main(arguments: Sequence[str]) -> int:
    """Write all pictures, or compare them; return the exit code."""
    different = []
    for name in PICTURES:
        file, picture = FOLDER / f"{name}.svg", drawn(name)
        if not file.exists() or file.read_text("utf-8") != picture:
            different.append(file)
            if "--check" not in arguments:
                file.write_text(picture, "utf-8")
    print(*different, sep="\n", end="\n" * bool(different))
    return int("--check" in arguments and bool(different))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
