"""AutoRound 0.16, where it packs integers as GPTQ or AWQ do."""

from collections.abc import Callable, Mapping

from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.prequantized.gptq import read_awq, read_gptq
from kvcast.checkpoints.prequantized.parts import Stored

_PACKINGS: Mapping[str, Callable[[Fields, Stored], Stored]] = {
    "auto_round:auto_gptq": read_gptq,
    "auto_round:auto_awq": read_awq,
}


def read_auto_round(fields: Fields, stored: Stored) -> Stored:
    usual, *_ = _PACKINGS
    packing = str(fields.values.get("packing_format", usual))
    if packing not in _PACKINGS or fields.values.get("data_type", "int") != "int":
        raise fields.error(
            f"AutoRound's packing {packing[:40]!r} is not supported: export it as one of "
            f"{', '.join(_PACKINGS)}"
        )
    return _PACKINGS[packing](fields, stored)
