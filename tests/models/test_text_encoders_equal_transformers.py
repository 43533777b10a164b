"""Text encoders read from files against transformers' models and PyTorch's pooling.

Native and eager alike; a text alone is the text among others.
"""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import kvcast
from kit.random_encoders import CROSS_ENCODERS, ENCODERS, WORDS, random_encoder, save_encoder

LENGTHS = (1, 150, 7, 40, 12, 6, 5)
RANDOM = np.random.default_rng(3)
TEXTS = [" ".join(RANDOM.choice(WORDS[4:], length)) for length in LENGTHS]
RUNTIMES = ("native", "eager")


@torch.no_grad()
def hidden_of(oracle, text):
    ids = torch.tensor([[0, *(WORDS.index(word) for word in text.split()), 2]])
    return oracle(input_ids=ids).last_hidden_state[0]


@torch.no_grad()
def pooled_by_torch(oracle, pooling):
    pool = {
        "mean_tokens": lambda states: states.mean(0),
        "cls_token": lambda states: states[0],
        "max_tokens": lambda states: states.amax(0),
        "lasttoken": lambda states: states[-1],
    }[pooling]
    return torch.stack([pool(hidden_of(oracle, text)) for text in TEXTS])


def assert_same_directions(given, expected, within=1e-5):
    given, expected = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (given, expected))
    assert np.abs(1 - (given * expected).sum(1)).max() < within


@pytest.mark.parametrize("name", ENCODERS)
def test_vectors_are_transformers(name, tmp_path):
    oracle = random_encoder(ENCODERS[name])
    expected = pooled_by_torch(oracle, "mean_tokens").numpy()
    folder = save_encoder(oracle, tmp_path / "model")
    for runtime in RUNTIMES:
        model = kvcast.load(folder, runtime=runtime, quantize="none", threads=2)
        assert model.task == "embed"
        vectors = model.embed(TEXTS)
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, expected, atol=2e-5)
        alone = np.concatenate([model.embed(text) for text in TEXTS])
        if runtime == "native":
            np.testing.assert_array_equal(vectors, alone)
        else:
            np.testing.assert_allclose(vectors, alone, atol=2e-5)


@pytest.mark.parametrize("pooling", ["cls_token", "max_tokens", "lasttoken"])
def test_other_poolings(pooling, tmp_path):
    oracle = random_encoder(ENCODERS["mpnet"])
    folder = save_encoder(oracle, tmp_path / "model", pooling=pooling)
    vectors = kvcast.load(folder, runtime="native", quantize="none").embed(TEXTS)
    np.testing.assert_allclose(vectors, pooled_by_torch(oracle, pooling).numpy(), atol=2e-5)


@torch.no_grad()
def test_dense_layers_follow_the_pooling(tmp_path):
    oracle = random_encoder(ENCODERS["gemma3_text"])
    dense = ((48, "Tanh"), (20, "Identity"))
    folder = save_encoder(oracle, tmp_path / "model", dense=dense, normalize=True)
    expected = pooled_by_torch(oracle, "mean_tokens")
    for i, after in ((2, torch.tanh), (3, lambda x: x)):
        weights = load_file(folder / f"{i}_Dense/model.safetensors")
        linear = torch.nn.functional.linear(
            expected, weights["linear.weight"], weights["linear.bias"]
        )
        expected = after(linear)
    expected = torch.nn.functional.normalize(expected).numpy()
    for runtime in RUNTIMES:
        model = kvcast.load(folder, runtime=runtime, quantize="none")
        np.testing.assert_allclose(model.embed(TEXTS), expected, atol=1e-5)
        short = expected[:, :8] / np.linalg.norm(expected[:, :8], axis=1, keepdims=True)
        np.testing.assert_allclose(model.embed(TEXTS, dimensions=8), short, atol=1e-5)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize(("quantize", "within"), [("int8", 0.01), ("int4", 0.1)])
def test_quantized_vectors_are_near(name, quantize, within, tmp_path):
    oracle = random_encoder(ENCODERS[name])
    model = kvcast.load(save_encoder(oracle, tmp_path / "model"), quantize=quantize)
    vectors = model.embed(TEXTS)
    assert_same_directions(vectors, pooled_by_torch(oracle, "mean_tokens").numpy(), within)
    np.testing.assert_array_equal(vectors, np.concatenate([model.embed([text]) for text in TEXTS]))


@pytest.mark.parametrize("name", CROSS_ENCODERS)
@torch.no_grad()
def test_scores_are_transformers(name, tmp_path):
    oracle = random_encoder(CROSS_ENCODERS[name], num_labels=1)
    folder = save_encoder(oracle, tmp_path / "model", pooling=None)
    query, *documents = TEXTS[2:]
    expected = []
    for document in documents:
        first, second = ([WORDS.index(word) for word in text.split()] for text in (query, document))
        ids = torch.tensor([[0, *first, 2, *second, 2]])
        segments = torch.tensor([[0] * (len(first) + 2) + [1] * (len(second) + 1)])
        if oracle.config.type_vocab_size == 1:
            segments.zero_()
        expected.append(oracle(input_ids=ids, token_type_ids=segments).logits.item())
    for runtime in RUNTIMES:
        model = kvcast.load(folder, runtime=runtime, quantize="none")
        assert model.task == "rerank"
        ranked = model.rerank(query, documents)
        assert [one.index for one in ranked] == np.argsort(expected)[::-1].tolist()
        logits = np.array(expected)[[one.index for one in ranked]]
        relevance = [one.relevance_score for one in ranked]
        np.testing.assert_allclose(relevance, 1 / (1 + np.exp(-logits)), atol=1e-5)
        assert model.rerank(query, documents, top_n=2) == ranked[:2]
