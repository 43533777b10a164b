"""bert4keras's releases as written by TensorFlow: equal tensors and logits, one-line errors."""

import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, RoFormerConfig, RoFormerForMaskedLM

from checkpoints.folder_checks import outcome
from checkpoints.tiny_tensorflow import DATA, RELEASES, WRITER, copied, variables
from kit.models import whole_logits
from kvcast.checkpoints.source import open_checkpoint, read_dimensions
from kvcast.families.t5 import T5Dimensions
from kvcast.families.unilm import UnilmDimensions
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.runtime import EagerEncoderDecoder, EagerPrefix
from kvcast.spec.position_encodings import Rotary

BERT_SIZES = {
    **{"segments": 2, "width": 8, "inner": 12, "heads": 2, "layers": 2, "pooled": True},
    **{"activation": "gelu", "norm_eps": 1e-12},
}
DIMENSIONS = {
    "roformer-sim": UnilmDimensions(
        architecture="roformer",
        vocab_size=11,
        embedding_width=6,
        max_positions=512,
        rotary=Rotary(base=10_000.0),
        **BERT_SIZES,
    ),
    "simbert": UnilmDimensions(
        architecture="bert",
        vocab_size=10,
        embedding_width=8,
        max_positions=9,
        rotary=None,
        **BERT_SIZES,
    ),
    "t5-pegasus": T5Dimensions(
        architecture="t5-pegasus",
        vocab_size=9,
        width=6,
        inner=10,
        heads=2,
        head_dim=4,
        encoder_layers=2,
        decoder_layers=2,
        buckets=32,
        max_distance=128,
        activation="gelu",
        gated=True,
        tied=False,
        logit_scale=6**-0.5,
        norm_eps=1e-6,
        cross_bias=True,
        start_token=2,
    ),
}


def configured(release, tmp_path, **fields):
    folder = copied(release, tmp_path)
    path = next(folder.glob("*.json"))
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **fields}))
    return folder


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_has_its_dimensions_its_tensors_and_its_text(release):
    checkpoint = open_checkpoint(DATA / release)
    assert checkpoint.dimensions == read_dimensions(DATA / release) == DIMENSIONS[release]
    family = checkpoint.family
    expected = family.tensor_shapes(checkpoint.dimensions)
    assert {name: tensor.shape for name, tensor in checkpoint.tensors.items()} == expected
    about = {"end_tokens": [3], "tokenizer": "bert", "lowercase": True}
    assert json.loads(checkpoint.text["text.json"]) == {**about, "words": release == "t5-pegasus"}
    assert checkpoint.text["vocab.txt"] == (DATA / release / "vocab.txt").read_bytes()
    assert checkpoint.text.keys() == {"text.json", "vocab.txt"}


def renamed(name):
    """transformers' name of one of Google BERT's variables."""
    if name.startswith("bert/embeddings/") and name.endswith("_embeddings"):
        name = f"{name}/weight"
    for theirs, ours in (
        ("layer_", "layer/"),
        ("bert/encoder/embedding_hidden_mapping_in", "bert/embeddings_project"),
        ("predictions/output_bias", "predictions/bias"),
        ("kernel", "weight"),
        ("gamma", "weight"),
        ("beta", "bias"),
    ):
        name = name.replace(theirs, ours)
    return name.replace("/", ".")


def in_transformers(release):
    rotary = release == "roformer-sim"
    config, kind = (
        (WRITER.ROFORMER, (RoFormerConfig, RoFormerForMaskedLM))
        if rotary
        else (WRITER.SIMBERT, (BertConfig, BertForMaskedLM))
    )
    model = kind[1](kind[0](**config, layer_norm_eps=1e-12)).eval()
    state = {}
    for name, value in variables(release).items():
        if not name.startswith("bert/pooler/"):
            turned = value.T.copy() if name.endswith("/kernel") else value
            state[renamed(name).replace("bert.", "roformer." if rotary else "bert.", 1)] = turned
    missing, unexpected = model.load_state_dict(
        {name: torch.from_numpy(value) for name, value in state.items()}, strict=False
    )
    assert not unexpected
    assert all("decoder" in name or "embed_positions" in name for name in missing)
    model.tie_weights()
    return model


@pytest.mark.parametrize("release", ["roformer-sim", "simbert"])
def test_a_source_has_the_logits_and_the_vector_of_transformers(release):
    checkpoint, model = open_checkpoint(DATA / release), in_transformers(release)
    programs = TorchModel.from_tensors(checkpoint.dimensions, checkpoint.tensors)
    source = np.array([2, 7, 5, 9, 6, 5, 8, 3])
    with torch.no_grad():
        theirs = model(torch.from_numpy(source)[None], output_hidden_states=True)
    ours = whole_logits(programs, source, np.array([], np.int64))
    assert theirs.logits.std() > 0.5
    np.testing.assert_allclose(ours, theirs.logits[0].numpy(), atol=1e-4, rtol=0)
    # The releases pool with with_pool="linear": no tanh.
    first, weights = theirs.hidden_states[-1][0, 0].numpy(), variables(release)
    pooled = first @ weights["bert/pooler/dense/kernel"] + weights["bert/pooler/dense/bias"]
    vector = EagerPrefix(programs).embed([source])[0]
    np.testing.assert_allclose(vector, pooled, atol=1e-4, rtol=0)


class Bert4kerasT5:
    """T5_Encoder and T5_Decoder of bert4keras's models.py, in NumPy."""

    def __init__(self, weights, config, cross_bias):
        self.weights, self.cross_bias = weights, cross_bias
        self.layers, self.heads = config["num_hidden_layers"], config["num_attention_heads"]

    def logits(self, source, target):
        """[len(target), vocab]."""
        context = self.stack("encoder", source, None)
        hidden = self.stack("decoder", target, context)
        return hidden * hidden.shape[1] ** -0.5 @ self.weights["decoder/logits/kernel"]

    def stack(self, stack, tokens, context):
        x = self.weights["shared/embedding"][tokens]
        ahead = np.triu(np.full((len(x), len(x)), -np.inf), 1) if stack == "decoder" else 0
        own = self.bias(stack, len(x), len(x)) + ahead
        for i in range(self.layers):
            part = f"{stack}/block_{i:03}/layer_"
            normed = self.norm(x, f"{part}000/rms_norm")
            x = x + self.attention(f"{part}000/SelfAttention", normed, normed, own)
            if context is not None:
                normed = self.norm(x, f"{part}001/rms_norm")
                bias = self.bias(stack, len(x), len(context)) if self.cross_bias else 0
                x = x + self.attention(f"{part}001/EncDecAttention", normed, context, bias)
            last = f"{part}00{1 if context is None else 2}"
            normed = self.norm(x, f"{last}/rms_norm")
            dense = [
                self.weights[f"{last}/DenseReluDense/{n}/kernel"] for n in ("wi_0", "wi_1", "wo")
            ]
            gate = normed @ dense[0]
            gate = 0.5 * gate * (1 + np.vectorize(math.erf)(gate / np.sqrt(2)))
            x = x + (gate * (normed @ dense[1])) @ dense[2]
        return self.norm(x, f"{stack}/rms_norm")

    def norm(self, x, name):
        scale = self.weights[f"{name}/scale"]
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * scale

    def attention(self, name, x, y, bias):
        query, key, value = (
            (z @ self.weights[f"{name}/{n}"]).reshape(len(z), self.heads, -1)
            for z, n in ((x, "q"), (y, "k"), (y, "v"))
        )
        scores = np.einsum("jhd,khd->hjk", query, key) + bias
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hjk,khd->jhd", scores, value)
        return mixed.reshape(len(x), -1) @ self.weights[f"{name}/o"]

    def bias(self, stack, queries, keys):
        """[heads, queries, keys] by RelativePositionEmbeddingT5."""
        n = np.arange(queries)[:, None] - np.arange(keys)
        buckets, first = WRITER.BUCKETS, 0
        if stack == "encoder":
            buckets //= 2
            first, n = np.where(n < 0, buckets, 0), np.abs(n)
        n, exact = np.maximum(n, 0), buckets // 2
        far = np.log(np.maximum(n, 1) / exact) / np.log(128 / exact) * (buckets - exact)
        far = np.minimum(exact + far.astype(int), buckets - 1)
        table = f"{stack}/block_000/layer_000/SelfAttention/relative_attention_bias"
        return self.weights[table][:, first + np.where(n < exact, n, far)]


@pytest.mark.parametrize("cross_bias", [True, False])
def test_t5_pegasus_has_the_logits_of_bert4keras(tmp_path, cross_bias):
    fields = {} if cross_bias else {"cross_position_bias": False}
    checkpoint = open_checkpoint(configured("t5-pegasus", tmp_path, **fields))
    assert checkpoint.dimensions.cross_bias == cross_bias
    programs = TorchModel.from_tensors(checkpoint.dimensions, checkpoint.tensors)
    runtime = EagerEncoderDecoder(programs)
    rng = np.random.default_rng(5)
    source, target = rng.integers(4, 9, 40), np.array([2, *rng.integers(4, 9, 24)])
    cache = runtime.new_cache(1, len(target), inputs=1)
    cache = runtime.encode(cache, [0], source[None], np.array([len(source)], np.int32))
    cache = runtime.reset(cache, [0], [0])
    ours, _ = runtime.decode([target], cache, positions=range(len(target)))
    weights = {name: value.astype(np.float64) for name, value in variables("t5-pegasus").items()}
    theirs = Bert4kerasT5(weights, WRITER.T5_PEGASUS, cross_bias).logits(source, target)
    assert theirs.std() > 0.2
    np.testing.assert_allclose(ours[0], theirs, atol=1e-4, rtol=0)


def test_an_exact_and_an_approximate_gelu_are_told_apart(tmp_path):
    for name, activation in (("gelu_tanh", "gelu_tanh"), ("gelu_erf", "gelu"), ("relu", "relu")):
        folder = configured("simbert", tmp_path, hidden_act=name)
        assert open_checkpoint(folder).dimensions.activation == activation
        folder = configured("t5-pegasus", tmp_path, hidden_act=[name, "linear"])
        assert open_checkpoint(folder).dimensions.activation == activation


def test_a_configuration_may_have_another_name(tmp_path):
    folder = copied("t5-pegasus", tmp_path)
    expected = open_checkpoint(folder).dimensions
    for name in ("t5_config.json", "bert_config.json"):
        next(folder.glob("*.json")).rename(folder / name)
        assert open_checkpoint(folder).dimensions == expected


@pytest.mark.parametrize(
    ("values", "least"),
    [
        ((-1, True, "x", 2**40), 25),
        pytest.param((0, 1.5, [], {}, [1, "linear"], 10**400), 35, marks=pytest.mark.slow),
    ],
    ids=["some", "others"],
)
@pytest.mark.parametrize("release", RELEASES)
def test_a_field_with_any_value_is_read_or_one_line(release, values, least, tmp_path):
    folder = copied(release, tmp_path)
    path = next(folder.glob("*.json"))
    fields = json.loads(path.read_bytes())
    others = ("max_position", "segment_vocab_size", "cross_position_bias", "attention_head_size")
    refused = 0
    for name in (*fields, *others):
        for value in values:
            path.write_text(json.dumps({**fields, name: value}))
            refused += outcome(partial(open_checkpoint, folder)) is not None
    assert refused > least


def test_what_unicode_calls_a_line_break_may_be_a_token(tmp_path):
    folder = copied("simbert", tmp_path)
    (folder / "vocab.txt").write_bytes("\u2028\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n".encode())
    assert json.loads(open_checkpoint(folder).text["text.json"])["end_tokens"] == [3]
