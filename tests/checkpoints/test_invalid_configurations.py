"""An invalid configuration is read or refused in one line, whatever its type and field.

Each field of transformers' default configuration of each type is replaced, one after the other.
"""

import json
from collections.abc import Iterator, Mapping
from math import nan
from typing import Any

import pytest
import transformers

from kit.errors import one_line
from kvcast.checkpoints.huggingface import _FAMILIES
from kvcast.errors import KvcastError

# Of a type that several families read, the last: a generator rather than an encoder.
BY_TYPE = {kind: family for family in _FAMILIES for kind in family.model_types}
SOME = [-1, 2**40, "x"]
OTHERS = [0, True, -0.5, 1e308, nan, None, "10", [], [-1], {}, {"a": {}}]


def usual(model_type: str) -> dict[str, Any]:
    config = transformers.AutoConfig.for_model(model_type).to_dict()
    if model_type == "qwen3_asr":  # whose default encoder does not fit its decoder
        config["audio_config"]["output_dim"] = config["text_config"]["hidden_size"]
    if model_type == "nemotron_h":  # whose default has experts
        config["layers_block_type"] = ["linear_attention", "mlp", "full_attention"]
    if model_type == "granite_speech":
        config["projector_config"]["encoder_hidden_size"] = config["encoder_config"]["hidden_dim"]
    if model_type == "dots1":  # which has no defaults of its experts
        config |= {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2}
    if model_type == "deepseek_v2":  # which lacks one
        config |= {"num_experts_per_tok": 6}
    return json.loads(json.dumps(config, default=str)) | {"model_type": model_type}


def places(config: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The ways to each field, those of up to two parts within one another included."""
    for name, value in config.items():
        if (*above, name) != ("model_type",):
            yield (*above, name)
        if isinstance(value, dict) and len(above) < 2:
            yield from places(value, (*above, name))


def with_value(config: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    *above, name = place
    changed = part = json.loads(json.dumps(config))
    for step in above:
        part = part[step]
    part[name] = value
    return changed


@pytest.mark.parametrize(
    "values", [SOME, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["some", "others"]
)
@pytest.mark.parametrize("model_type", BY_TYPE)
def test_a_field_with_any_value_is_read_or_one_line(model_type: str, values: list[Any]) -> None:
    dimensions, config = BY_TYPE[model_type].dimensions, usual(model_type)
    refusals: list[str] = []
    dimensions(config, "config.json")
    for place in places(config):
        for value in values:
            try:
                dimensions(with_value(config, place, value), "config.json")
            except KvcastError as error:
                refusals.append(str(error))
    assert len(refusals) >= len(values)
    assert not any("\n" in refusal for refusal in refusals)


# fmt: off
BARTS = ("bart", "blenderbot", "blenderbot-small", "m2m_100", "marian", "mbart", "pegasus")
CONFORMERS = ("canary", "cohere_asr", "parakeet_ctc", "parakeet_rnnt", "parakeet_tdt")
REFUSED: list[tuple[str, dict[str, Any]]] = [
    *((name, fields) for name in BARTS for fields in (
        {"d_model": -1}, {"d_model": 1000001}, {"encoder_layers": 10**9}, {"decoder_ffn_dim": 0},
        {"vocab_size": "many"}, {"activation_function": "tanh"}, {"scale_embedding": 3},
        {"max_position_embeddings": 2**40}, {"decoder_start_token_id": 10**9},
        {"share_encoder_decoder_embeddings": "no"},
    )),
    *(("t5gemma", {stack: fields}) for stack in ("encoder", "decoder") for fields in (
        {"hidden_size": -1}, {"num_hidden_layers": 10**9}, {"num_key_value_heads": 3},
        {"head_dim": 7}, {"max_position_embeddings": 2**40}, {"layer_types": ["full_attention"]},
        {"layer_types": ["conv"] * 26}, {"sliding_window": 0}, {"query_pre_attn_scalar": 0},
        {"attn_logit_softcapping": -1.0}, {"attention_bias": "yes"}, {"vocab_size": 2**40},
        {"hidden_activation": "tanh"}, {"rope_parameters": {"rope_type": "odd"}},
        {"rms_norm_eps": 0},
    )),
    *(("t5gemma", fields) for fields in (
        {"decoder_start_token_id": 10**6}, {"encoder": 3},
        {"decoder": {"final_logit_softcapping": 0}},
    )),
    *(("t5gemma2", fields) for fields in (
        {"encoder": {"text_config": []}}, {"encoder": {"eoi_token_index": -1}},
        {"encoder": {"text_config": {"hidden_size": 2048}}},
        {"encoder": {"text_config": {"vocab_size": 300}}},
        {"encoder": {"text_config": {"sliding_window_pattern": 0}}},
        {"decoder": {"rope_parameters": {"sliding_attention": {"rope_theta": 0}}}},
        {"decoder": {"layer_types": ["full_attention"]}}, {"decoder_start_token_id": 10**6},
    )),
    *((name, fields) for name in ("moonshine", "moonshine_streaming") for fields in (
        {"hidden_size": -1}, {"vocab_size": "many"}, {"intermediate_size": 0}, {"head_dim": 7},
        {"max_position_embeddings": 2**40}, {"decoder_start_token_id": 10**9},
        {"attention_bias": 3}, {"partial_rotary_factor": 2.0},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
    )),
    *(("moonshine", fields) for fields in (
        {"encoder_num_hidden_layers": 10**9}, {"encoder_num_key_value_heads": 2},
        {"decoder_num_attention_heads": 4}, {"encoder_hidden_act": "mish"},
    )),
    *(("moonshine_streaming", fields) for fields in (
        {"num_hidden_layers": 10**9}, {"num_key_value_heads": 2}, {"hidden_act": "mish"},
        {"encoder_config": 3},
        *({"encoder_config": of_encoder} for of_encoder in (
            {"sample_rate": 8000}, {"frame_ms": 0}, {"frame_ms": 1e300},
            {"num_key_value_heads": 4}, {"sliding_windows": [[16, 4]]},
            {"sliding_windows": [[0, 4]] * 6}, {"sliding_windows": [[4, -1]] * 6},
            {"sliding_windows": [4] * 6}, {"sliding_windows": 4},
        )),
    )),
    *((name, {"encoder_config": fields}) for name in CONFORMERS for fields in (
        {"num_attention_heads": 7}, {"conv_kernel_size": 8}, {"conv_kernel_size": 10**6 + 1},
        {"subsampling_factor": 6}, {"subsampling_conv_stride": 3}, {"num_mel_bins": 100},
        {"subsampling_conv_kernel_size": 5}, {"head_dim": 5}, {"model_type": "wav2vec2"},
    )),
    *(("cohere_asr", fields) for fields in ({"num_key_value_heads": 1}, {"head_dim": 3})),
    ("canary", {"decoder_config": {"vocab_size": 70}, "vocab_size": 80}),
    ("canary", {"decoder_config": {"hidden_size": 512, "num_attention_heads": 4}}),
    ("parakeet_ctc", {"pad_token_id": 10**6}),
    ("parakeet_rnnt", {"blank_token_id": 9000}),
    *(("parakeet_tdt", {"durations": durations}) for durations in ([0, 0], [0.5], [10**9])),
]
# fmt: on


@pytest.mark.parametrize(("model_type", "fields"), REFUSED, ids=str)
def test_fields_that_contradict_each_other_are_one_line(model_type: str, fields: dict[str, Any]):
    dimensions = BY_TYPE[model_type].dimensions
    dimensions({"model_type": model_type}, "config.json")
    invalid = {"model_type": model_type, **fields}
    assert "config.json: " in one_line(KvcastError, dimensions, invalid, "config.json")
