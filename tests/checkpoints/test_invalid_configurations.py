"""A configuration that lies is read or refused in one line, whatever its type and field.

Each field of transformers' default configuration of each type is replaced, one after the other.
"""

import json
from collections.abc import Iterator, Mapping
from math import nan
from typing import Any

import pytest
import transformers

from kvcast.checkpoints.huggingface import _FAMILIES
from kvcast.errors import KvcastError

SOME = [-1, 2**40, "x"]
OTHERS = [0, True, -0.5, 1e308, nan, None, "10", [], [-1], {}, {"a": {}}]


def usual(model_type: str) -> dict[str, Any]:
    config = transformers.AutoConfig.for_model(model_type).to_dict()
    if model_type == "qwen3_asr":  # whose default encoder does not fit its decoder
        config["audio_config"]["output_dim"] = config["text_config"]["hidden_size"]
    if model_type == "granite_speech":
        config["projector_config"]["encoder_hidden_size"] = config["encoder_config"]["hidden_dim"]
    return json.loads(json.dumps(config, default=str)) | {"model_type": model_type}


def places(config: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The ways to each field, those of up to two parts within one another included."""
    for name, value in config.items():
        if (*above, name) != ("model_type",):
            yield (*above, name)
        if isinstance(value, dict) and len(above) < 2:
            yield from places(value, (*above, name))


def lying(config: dict[str, Any], place: tuple[str, ...], lie: Any) -> dict[str, Any]:
    *above, name = place
    changed = part = json.loads(json.dumps(config))
    for step in above:
        part = part[step]
    part[name] = lie
    return changed


@pytest.mark.parametrize(
    "lies", [SOME, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["some", "others"]
)
@pytest.mark.parametrize("model_type", _FAMILIES)
def test_a_field_that_lies_is_read_or_one_line(model_type: str, lies: list[Any]) -> None:
    dimensions, config = _FAMILIES[model_type].dimensions, usual(model_type)
    refusals: list[str] = []
    dimensions(config, "config.json")
    for place in places(config):
        for lie in lies:
            try:
                dimensions(lying(config, place, lie), "config.json")
            except KvcastError as error:
                refusals.append(str(error))
    assert len(refusals) >= len(lies)
    assert not any("\n" in refusal for refusal in refusals)
