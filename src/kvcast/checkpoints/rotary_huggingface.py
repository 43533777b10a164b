"""Rotary angles as config.json writes them down.

Published models have rope_theta and rope_scaling; transformers 5 writes rope_parameters, one
object or one for each kind of layer. What each kind of scaling means is in `kvcast.spec.rotary`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from kvcast.checkpoints.fields import Fields
from kvcast.spec.rotary import Rotary

FULL, SLIDING = "full_attention", "sliding_attention"


def read_rotary(fields: Fields, layers: str, base: str) -> Rotary:
    """Read the angles of one kind of `layers` (FULL or SLIDING).

    `base` is the field with their base where the angles' own object has none. Raises KvcastError
    for kinds of scaling that are not supported.
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
    """Find the object that belongs to `layers`; an empty one stands for no scaling."""
    none = Fields(values={}, what=fields.what)
    found = fields.group("rope_scaling") or fields.group("rope_parameters") or none
    if FULL in found.values or SLIDING in found.values:
        return found.group(layers) or none
    # What is said of all layers was meant for those that see far.
    return found if layers == FULL else none


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
        # DeepSeek's spelling: how much more the one grows with the factor than the other.
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
    """Length that the model was trained with before it was stretched."""
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
