"""AutoRound 0.16, where it packs integers as GPTQ does."""

from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.prequantized.gptq import read_gptq
from kvcast.checkpoints.prequantized.parts import Stored

_PACKING = "auto_round:auto_gptq"


def read_auto_round(fields: Fields, stored: Stored) -> Stored:
    packing = fields.values.get("packing_format", _PACKING)
    if packing != _PACKING or fields.values.get("data_type", "int") != "int":
        raise fields.error(
            f"AutoRound's packing {str(packing)[:40]!r} is not supported: export it as {_PACKING}"
        )
    return read_gptq(fields, stored)
