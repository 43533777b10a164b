"""The uncached UniLM against a NumPy implementation of bert4keras.

Written from the UniLM paper (arXiv:1905.03197, section 2.3), the RoFormer paper (arXiv:2104.09864,
section 3.2.2) and the published formula for the mask, with bert4keras's layouts: matrices [in,
out], query, key and value apart, neighbours of a head turning together.
"""

import math

import numpy as np
import pytest

from kit.dimensions import ROFORMER, SIMBERT, SMALL_ROFORMER
from kit.in_transformers import halves
from kit.models import whole_logits
from kvcast.models.executor import TorchModel

ERF = np.vectorize(math.erf)
ACTIVATIONS = {
    "gelu": lambda x: x * (1 + ERF(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: np.maximum(x, 0),
}


def random_weights(dimensions):
    """Weights by the names of bert4keras's layers; a dense layer is a matrix and a bias."""
    generator = np.random.default_rng(7)
    width, embedded = dimensions.width, dimensions.embedding_width

    def normal(*shape, mean=0.0):
        return generator.normal(mean, 0.2, shape)

    def dense(inputs, outputs):
        return normal(inputs, outputs), normal(outputs)

    def norm(size):
        return normal(size, mean=1.0), normal(size)

    weights = {
        "token": normal(dimensions.vocab_size, embedded),
        "segment": normal(dimensions.segments, embedded),
        "position": normal(dimensions.max_positions, embedded),
        "embedding norm": norm(embedded),
        "mapping": dense(embedded, width),
        "mlm dense": dense(width, embedded),
        "mlm norm": norm(embedded),
        "mlm bias": normal(dimensions.vocab_size),
    }
    for layer in range(dimensions.layers):
        for name in "qkvo":
            weights[f"{layer} {name}"] = dense(width, width)
        weights[f"{layer} attention norm"] = norm(width)
        weights[f"{layer} up"] = dense(width, dimensions.inner)
        weights[f"{layer} down"] = dense(dimensions.inner, width)
        weights[f"{layer} feed-forward norm"] = norm(width)
    return weights


def unilm_in_numpy(dimensions, weights, tokens, segments):
    """Logits [batch, s, vocab] of tokens and segments [batch, s]."""
    activation = ACTIVATIONS[dimensions.activation]

    def dense(x, name):
        kernel, bias = weights[name]
        return x @ kernel + bias

    def norm(x, name):
        gamma, beta = weights[name]
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * gamma + beta

    idxs = np.cumsum(segments, axis=1)
    mask = idxs[:, None, :] <= idxs[:, :, None]
    hidden = weights["token"][tokens] + weights["segment"][segments]
    if dimensions.rotary is None:
        hidden = hidden + weights["position"][: tokens.shape[1]]
    hidden = norm(hidden, "embedding norm")
    if dimensions.embedding_width != dimensions.width:
        hidden = dense(hidden, "mapping")
    for layer in range(dimensions.layers):
        query, key, value = (
            dense(hidden, f"{layer} {name}").reshape(*tokens.shape, dimensions.heads, -1)
            for name in "qkv"
        )
        if dimensions.rotary is not None:
            query, key = rotated(query), rotated(key)
        scores = np.einsum("bjhd,bkhd->bhjk", query, key) / math.sqrt(query.shape[-1])
        scores = scores - (1 - mask[:, None]) * 1e12
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        mixed = np.einsum("bhjk,bkhd->bjhd", weight, value).reshape(hidden.shape)
        hidden = norm(hidden + dense(mixed, f"{layer} o"), f"{layer} attention norm")
        fed = dense(activation(dense(hidden, f"{layer} up")), f"{layer} down")
        hidden = norm(hidden + fed, f"{layer} feed-forward norm")
    transformed = norm(activation(dense(hidden, "mlm dense")), "mlm norm")
    return transformed @ weights["token"].T + weights["mlm bias"]


def rotated(heads_bshd):
    """Rotate each pair of neighbours by its sinusoidal position."""
    count, size = heads_bshd.shape[1], heads_bshd.shape[-1]
    angles = np.arange(count)[:, None] * 10000.0 ** (-2 * np.arange(size // 2) / size)
    sinusoid = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(count, size)
    cosines = np.repeat(sinusoid[:, 1::2], 2, axis=-1)[:, None]
    sines = np.repeat(sinusoid[:, 0::2], 2, axis=-1)[:, None]
    turned = np.stack([-heads_bshd[..., 1::2], heads_bshd[..., 0::2]], axis=-1)
    return heads_bshd * cosines + turned.reshape(heads_bshd.shape) * sines


def canonical(dimensions, weights):
    """The same weights by kvcast's names."""
    tensors = {
        "embedding.weight": weights["token"],
        "segments.weight": weights["segment"],
        "head.bias": weights["mlm bias"],
    }
    pairs = {"embedding_norm": "embedding norm", "head.norm": "mlm norm"}
    pairs["head.transform"] = "mlm dense"
    if dimensions.rotary is None:
        tensors["positions.weight"] = weights["position"]
    if dimensions.embedding_width != dimensions.width:
        pairs["projection"] = "mapping"
    for layer in range(dimensions.layers):
        for part, index in (("weight", 0), ("bias", 1)):
            rows = [weights[f"{layer} {name}"][index].T for name in "qkv"]
            if dimensions.rotary is not None:
                rows[:2] = (halves(matrix, dimensions.heads) for matrix in rows[:2])
            tensors[f"layers.{layer}.attention.qkv.{part}"] = np.concatenate(rows)
        pairs |= {
            f"layers.{layer}.attention.out": f"{layer} o",
            f"layers.{layer}.attention_norm": f"{layer} attention norm",
            f"layers.{layer}.feed_forward.up": f"{layer} up",
            f"layers.{layer}.feed_forward.down": f"{layer} down",
            f"layers.{layer}.feed_forward_norm": f"{layer} feed-forward norm",
        }
    for ours, theirs in pairs.items():
        weight, bias = weights[theirs]
        tensors |= {f"{ours}.weight": weight.T, f"{ours}.bias": bias}
    return tensors


@pytest.mark.parametrize("dimensions", [ROFORMER, SMALL_ROFORMER, SIMBERT])
@pytest.mark.parametrize(("source_length", "target_length"), [(9, 0), (1, 12), (17, 8), (50, 40)])
def test_the_uncached_unilm(dimensions, source_length, target_length):
    unpooled = {**vars(dimensions), "pooled": False}
    dimensions = type(dimensions)(**unpooled)
    weights = random_weights(dimensions)
    programs = TorchModel.from_tensors(dimensions, canonical(dimensions, weights))
    tokens = np.random.default_rng(8).integers(
        0, dimensions.vocab_size, source_length + target_length
    )
    segments = np.repeat([0, 1], [source_length, target_length])
    expected = unilm_in_numpy(dimensions, weights, tokens[None], segments[None])[0]
    actual = whole_logits(programs, tokens[:source_length], tokens[source_length:])
    assert np.abs(expected).max() > 0.5, "logits near zero would agree by themselves"
    np.testing.assert_allclose(actual, expected, atol=1e-4)
