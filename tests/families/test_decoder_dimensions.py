"""Impossible or unsupported dimensions are refused in one line."""

import json
import math
from dataclasses import replace

import pytest

from kit.dimensions import COHERE2, DOTS1, FALCON_H1, GEMMA3N, LLAMA, MINISTRAL3, MIXTRAL, NEOX
from kvcast.errors import KvcastError
from kvcast.families.alternating import Alternating
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.spec.position_encodings import Rotary

ALTERNATING = Alternating(streams=2, active=0, scaled=False, rank=4)
SHARED = {"sources": (0, 0)}
TWO = {"experts": 2, "experts_per_token": 1}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"max_positions": 1 << 30}, "more than any model has"),
        ({"heads": 5}, "not a multiple"),
        ({"head_dim": 15}, "even"),
        ({"windows": ()}, "windows must have"),
        ({"windows": (0, 3)}, "windows must have"),
        ({"vocab_size": 0}, "vocab_size must be a positive whole number"),
        ({"activation": "mish"}, "not supported"),
        ({"norm": "group"}, "norm 'group' is not supported"),
        ({"norm_bias": True}, "RMS norms with biases"),
        ({"norm": "layer", "query_key_norm": True}, "queries and keys without biases"),
        ({"pre_norms": False}, "without norms"),
        ({"shared_norm": True}, "only parallel blocks share a norm"),
        ({"unrotated": (2,)}, "some of 2 layers"),
        ({"logit_scale": math.inf}, "logit_scale must be a finite number"),
        ({"norm_eps": 0.0}, "norm_eps must be a finite number"),
        ({"experts": 2, "experts_per_token": 3}, "3 of 2 experts"),
        ({"shared_inner": 8}, "in mixtures of experts alone"),
        ({**TWO, "shared_inner": -8}, "shared_inner must be a positive"),
        ({**TWO, "dense_layers": (0,)}, "dense_inner must be a positive"),
        ({**TWO, "dense_layers": (2,), "dense_inner": 8}, "must number some of the layers"),
        ({**TWO, "dense_layers": (0, 1), "dense_inner": 8}, "and not all"),
        ({"rotary": Rotary(base=1e4, partial=0.01)}, "no pairs that turn"),
        ({"rotary_bases": (1e4,)}, "1 rotary bases are not one for each layer"),
        ({"rotary_bases": (1e4, 0.5)}, "rotary base 0.5"),
        ({"late_query_key_norm": True}, "queries and keys without norms"),
        ({"attention_gate": True, "head_gates": True}, "two gates"),
        ({"post_norm_eps": 0.0}, "post_norm_eps must be a finite number"),
        ({"norm": "layer", "embedding_norm": True}, "only RMS norms have no weights"),
        ({"sparsities": (0.5,)}, "1 sparsities are not one for each layer"),
        ({"sparsities": (0.5, 1.0)}, "from 0 to below 1"),
        ({"sparsities": (0.5, 0.0), **TWO}, "without experts are sparse"),
        ({"layer_vocabulary": -1}, "layer_vocabulary must be a positive"),
        ({"alternating": ALTERNATING}, "layers as Gemma 3n's"),
        ({"without_feed_forward": (0, 0)}, "each once"),
        ({"beside": (1,)}, "only a layer without a feed-forward"),
        ({"without_feed_forward": (0,), "parallel": True}, "have feed-forwards"),
        ({"activation": "xielu"}, "gates with xielu"),
        ({**SHARED, "query_key_norm": True, "late_query_key_norm": True}, "where layers share"),
    ],
)
def test_impossible_dimensions(changes, line):
    with pytest.raises(KvcastError, match=line):
        replace(LLAMA, **changes)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"streams": 1}, "1 streams of a token"),
        ({"streams": 9}, "9 streams of a token"),
        ({"active": 2}, "stream 2 is none of 2"),
        ({"rank": 0}, "a rank of 0"),
    ],
)
def test_impossible_streams(changes, line):
    with pytest.raises(KvcastError, match=line):
        replace(ALTERNATING, **changes)


def test_experts_of_another_activation():
    with pytest.raises(KvcastError, match="experts with gelu_tanh"):
        replace(MIXTRAL, activation="gelu_tanh")
    for change in ({"gated": False}, {"feed_forward_bias": True}):
        with pytest.raises(KvcastError, match="experts with biases or without gates"):
            replace(MIXTRAL, **change)


@pytest.mark.parametrize(
    "dimensions", [MIXTRAL, DOTS1, MINISTRAL3, COHERE2, NEOX, GEMMA3N, FALCON_H1], ids=str
)
def test_json_gives_the_same_dimensions_back(dimensions):
    written = json.loads(json.dumps(dimensions.to_json()))
    assert DecoderDimensions.from_json(written) == dimensions


def test_dimensions_of_earlier_bundles_are_read():
    first = ("architecture", "vocab_size", "width", "inner", "heads", "kv_heads", "head_dim")
    first += ("windows", "max_positions", "norm_eps", "attention_scale", "window_rotary", "tied")
    first += ("experts", "experts_per_token")
    written = {name: MIXTRAL.to_json()[name] for name in first}
    written["rotary"] = {"base": MIXTRAL.rotary.base, "scaling": "none"}
    assert DecoderDimensions.from_json(written) == MIXTRAL
