"""What calibrating int4 gains on real weights: SmolLM2-135M-Instruct, rotated.

Its file has blocks of 4 bits, which plain int4 would find again without any error. So pairs of
channels are rotated here, the residual stream's and those of each head's values, and the channels
behind gates are scaled: the same model, whose numbers fit no 4-bit grid.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import kvcast
from kvcast.checkpoints.base import Checkpoint
from kvcast.checkpoints.source import locate, open_checkpoint
from kvcast.runtimes.lowering import calibration
from kvcast_bench.writing.huggingface import write_huggingface

DATA = Path(__file__).parents[1] / "data"
TEXTS = ("pride-and-prejudice.txt", "spoken.txt")

Matrix = NDArray[np.float64]


def in_pairs(size: int, random: np.random.Generator) -> Matrix:
    turned = np.zeros((size, size))
    for first, other in random.permutation(size).reshape(-1, 2):
        angle = random.uniform(-np.pi / 4, np.pi / 4)
        turned[first, first] = turned[other, other] = np.cos(angle)
        turned[first, other], turned[other, first] = np.sin(angle), -np.sin(angle)
    return turned


def rotated(checkpoint: Checkpoint) -> Checkpoint:
    """The same model in other channels; the head is no longer the table."""
    sizes, random = checkpoint.dimensions, np.random.default_rng(7)
    rotated = {name: np.array(tensor, np.float64) for name, tensor in checkpoint.tensors.items()}
    turned, values = in_pairs(sizes.width, random), sizes.kv_heads * sizes.head_dim

    def read(matrix: str, norm: str) -> None:
        """Rotate inputs that a norm gives, whose gains become those of the new channels."""
        gains = np.sqrt(rotated[norm] ** 2 @ turned**2)
        rotated[matrix] = (rotated[matrix] * rotated[norm]) @ turned / gains
        rotated[norm] = gains

    rotated["decoder.head.weight"] = rotated["decoder.embedding.weight"]
    read("decoder.head.weight", "decoder.norm.weight")
    rotated["decoder.embedding.weight"] = rotated["decoder.embedding.weight"] @ turned
    for layer in range(sizes.layers):
        name = f"decoder.layers.{layer}"
        qkv, out = (rotated[f"{name}.attention.{part}.weight"] for part in ("qkv", "out"))
        of_value = in_pairs(sizes.head_dim, random)
        each = qkv[-values:].reshape(sizes.kv_heads, sizes.head_dim, sizes.width)
        qkv[-values:] = (of_value.T @ each).reshape(values, -1)
        mixed = out.reshape(sizes.width, sizes.heads, sizes.head_dim) @ of_value
        rotated[f"{name}.attention.out.weight"] = turned.T @ mixed.reshape(out.shape)
        up = rotated[f"{name}.feed_forward.gate_up.weight"][sizes.inner :]
        factors = np.exp(random.uniform(-0.3, 0.3, sizes.inner))
        up *= factors[:, None]
        down = f"{name}.feed_forward.down.weight"
        rotated[down] = turned.T @ (rotated[down] / factors)
        read(f"{name}.attention.qkv.weight", f"{name}.attention_norm.weight")
        read(f"{name}.feed_forward.gate_up.weight", f"{name}.feed_forward_norm.weight")
    tensors = {name: tensor.astype(np.float32) for name, tensor in rotated.items()}
    untied = replace(sizes, tied=False)
    return replace(checkpoint, dimensions=untied, tensors=tensors)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("rotated") / "model"
    write_huggingface(rotated(open_checkpoint(locate("demo-chat"))), written)
    return written


@pytest.mark.parametrize(
    ("runtime", "seeds"),
    [
        pytest.param("native", [0], marks=pytest.mark.slow),
        pytest.param("native", [1, 2], marks=pytest.mark.soak),
        pytest.param("onnx", [0, 1], marks=pytest.mark.soak),
    ],
)
def test_more_than_half_of_what_int4_loses_is_regained(
    runtime: str, seeds: list[int], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def losses(place: Path, quantize: str | None = None) -> list[float]:
        model = kvcast.load(place, runtime=runtime, quantize=quantize)
        texts = [model.tokenizer.encode((DATA / name).read_text("utf-8")) for name in TEXTS]
        losses = [-float(model.score(tokens).mean()) for tokens in texts]
        shown = ", ".join(f"{np.exp(loss):.2f}" for loss in losses)
        print(f"{runtime} {quantize or place.name}: perplexity {shown}")
        return losses

    exact, searched = losses(folder, "none"), losses(folder, "int4")
    for seed in seeds:
        monkeypatch.setattr(calibration, "_SEED", seed)
        bundle = tmp_path / f"calibrated-{seed}"
        kvcast.export_bundle(folder, bundle, runtime=runtime, quantize="int4-calibrated")
        calibrated = losses(bundle)
        for least, most, loss in zip(exact, searched, calibrated, strict=True):
            assert most - loss > (most - least) / 2
