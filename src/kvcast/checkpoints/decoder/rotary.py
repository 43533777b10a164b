"""Reads the settings of rotary embeddings from config.json.

Published models have rope_theta and rope_scaling; transformers 5 writes rope_parameters, one object
or one per kind of layer. `kvcast.spec.position_encodings` defines the kinds of scaling.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kvcast.checkpoints.fields import Fields
from kvcast.spec.position_encodings import Rotary

FULL, SLIDING = "full_attention", "sliding_attention"
SHARE, QUERY_BETA = "partial_rotary_factor", "llama_4_scaling_beta"


def read_rotary(fields: Fields, layers: str, base: str, own: Collection[str] = ()) -> Rotary:
    """Read settings of one kind of `layers` (FULL or SLIDING); KvcastError if unsupported.

    `base` names the field with the base, if the settings' own object has none; `own` are settings
    that only this model type has (SHARE, QUERY_BETA).
    """
    parameters = rotary_parameters(fields, layers)
    values = parameters.values
    scaling = str(values.get("rope_type") or values.get("type") or "default")
    if scaling not in _SCALINGS:
        supported = ", ".join(_SCALINGS)
        raise parameters.error(f"rope type {scaling!r} is not supported (supported: {supported})")
    share = parameters.positive(SHARE, fields.positive(SHARE, 1.0))
    if share != 1.0 and SHARE not in own and scaling != "proportional":
        raise parameters.error(f"{SHARE} must be 1: models of this type rotate whole heads")
    beta = parameters.positive(QUERY_BETA) if values.get(QUERY_BETA) else 0.0
    if beta and QUERY_BETA not in own:
        raise parameters.error(f"{QUERY_BETA} is not supported in models of this type")
    return parameters.make(
        Rotary,
        base=parameters.positive("rope_theta", fields.positive(base)),
        partial=share,
        query_beta=beta,
        **_SCALINGS[scaling](parameters, fields),
    )


def read_stretched_rotary(fields: Fields, head_dim: int) -> Rotary:
    """Read HunYuan's settings: "dynamic" with `alpha` has one base, a larger one, for all texts."""
    rotary, parameters = read_rotary(fields, FULL, "rope_theta"), rotary_parameters(fields, FULL)
    if rotary.scaling != "dynamic" or not parameters.values.get("alpha"):
        return rotary
    stretch = parameters.positive("alpha") ** (head_dim / max(head_dim - 2, 1))
    return parameters.make(Rotary, base=rotary.base * stretch)


def is_rotated(fields: Fields) -> bool:
    """Whether a base is given that is not null, as it is in OLMo Hybrid."""
    parameters = rotary_parameters(fields, FULL).values
    return {**fields.values, **parameters}.get("rope_theta") is not None


def rotary_parameters(fields: Fields, layers: str) -> Fields:
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
        "trained_positions": _trained_length(parameters, fields),
    }


def _dynamic(parameters: Fields, fields: Fields) -> dict[str, Any]:
    return {
        "scaling": "dynamic",
        "factor": parameters.positive("factor"),
        "trained_positions": fields.whole("max_position_embeddings"),
    }


def _proportional(parameters: Fields, _fields: Fields) -> dict[str, Any]:
    return {"scaling": "proportional", "factor": parameters.positive("factor", 1.0)}


def _longrope(parameters: Fields, fields: Fields) -> dict[str, Any]:
    trained, attention = _trained_length(parameters, fields), None
    if parameters.values.get("attention_factor") is not None:
        attention = parameters.positive("attention_factor")
    longer = fields.whole("max_position_embeddings") / trained
    return {
        "scaling": "longrope",
        "factor": parameters.positive("factor", max(longer, 1.0)),
        "trained_positions": trained,
        "attention_factor": attention,
        "divisors": parameters.positive_floats("short_factor"),
        "long_divisors": parameters.positive_floats("long_factor"),
    }


def _yarn(parameters: Fields, fields: Fields) -> dict[str, Any]:
    if "long_factor" in parameters.values:
        raise parameters.error("yarn has no long_factor: longrope has")
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
        "trained_positions": _trained_length(parameters, fields),
        "attention_factor": attention,
        "truncate": parameters.flag("truncate", True),
    }


def _trained_length(parameters: Fields, fields: Fields) -> int:
    name = "original_max_position_embeddings"
    if fields.values.get(name) is not None:
        return fields.whole(name)
    return parameters.whole(name, fields.whole("max_position_embeddings"))


_SCALINGS: Mapping[str, Callable[[Fields, Fields], dict[str, Any]]] = {
    "default": lambda _parameters, _fields: {},
    "mrope": lambda _parameters, _fields: {},  # of images; all positions of a text's token are one
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,  # its name before
    "dynamic": _dynamic,
    "proportional": _proportional,
}
