"""Reads the settings of rotary embeddings from config.json.

Published models have rope_theta and rope_scaling; transformers 5 writes rope_parameters, one object
or one per kind of layer. `kvcast.spec.rotary` defines the kinds of scaling. Knows no model type.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from kvcast.checkpoints.fields import Fields
from kvcast.spec.rotary import Rotary

FULL, SLIDING = "full_attention", "sliding_attention"


def read_rotary(fields: Fields, layers: str, base: str) -> Rotary:
    """Read the settings for one kind of `layers` (FULL or SLIDING).

    `base` names the field with the base, if the settings' own object has none. Raises KvcastError
    for unsupported kinds of scaling.
    """
    parameters = _parameters(fields, layers)
    values = parameters.values
    scaling = str(values.get("rope_type") or values.get("type") or "default")
    if scaling not in _SCALINGS:
        supported = ", ".join(_SCALINGS)
        raise parameters.error(f"rope type {scaling!r} is not supported (supported: {supported})")
    for part in (fields, parameters):
        if part.positive("partial_rotary_factor", 1.0) != 1.0:
            raise part.error("partial_rotary_factor must be 1: other models are not supported")
    return parameters.make(
        Rotary,
        base=parameters.positive("rope_theta", fields.positive(base)),
        **_SCALINGS[scaling](parameters, fields),
    )


def _parameters(fields: Fields, layers: str) -> Fields:
    """Return the object for `layers`; an empty one means no scaling."""
    none = Fields(values={}, label=fields.label)
    parameters = fields.group("rope_scaling") or fields.group("rope_parameters") or none
    if FULL in parameters.values or SLIDING in parameters.values:
        return parameters.group(layers) or none
    # A single object applies to layers with full attention.
    return parameters if layers == FULL else none


def _linear(parameters: Fields, _fields: Fields) -> dict[str, Any]:
    return {"scaling": "linear", "factor": parameters.positive("factor")}


def _llama3(parameters: Fields, fields: Fields) -> dict[str, Any]:
    return {
        "scaling": "llama3",
        "factor": parameters.positive("factor"),
        "low_frequency": parameters.positive("low_freq_factor"),
        "high_frequency": parameters.positive("high_freq_factor"),
        "trained_positions": _trained(parameters, fields),
    }


def _yarn(parameters: Fields, fields: Fields) -> dict[str, Any]:
    if not parameters.flag("truncate", True):
        raise parameters.error("yarn without truncate is not supported")
    factor, attention = parameters.positive("factor"), None
    if parameters.values.get("attention_factor") is not None:
        attention = parameters.positive("attention_factor")
    elif parameters.values.get("mscale") and parameters.values.get("mscale_all_dim"):
        # DeepSeek's spelling: the ratio of two attention factors.
        more, less = (
            0.1 * parameters.positive(name) * math.log(max(factor, 1.0)) + 1.0
            for name in ("mscale", "mscale_all_dim")
        )
        attention = more / less
    return {
        "scaling": "yarn",
        "factor": factor,
        "low_frequency": parameters.positive("beta_slow", 1.0),
        "high_frequency": parameters.positive("beta_fast", 32.0),
        "trained_positions": _trained(parameters, fields),
        "attention_factor": attention,
    }


def _trained(parameters: Fields, fields: Fields) -> int:
    """Return the length that the model was trained with, before its context was extended."""
    name = "original_max_position_embeddings"
    if fields.values.get(name) is not None:
        return fields.whole(name)
    return parameters.whole(name, fields.whole("max_position_embeddings"))


_SCALINGS: Mapping[str, Callable[[Fields, Fields], dict[str, Any]]] = {
    "default": lambda _parameters, _fields: {},
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
