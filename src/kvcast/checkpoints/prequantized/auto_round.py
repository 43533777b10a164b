"""AutoRound 0.16, which packs integers as GPTQ or AWQ does."""

from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.prequantized.gptq import read_awq, read_gptq
from kvcast.checkpoints.prequantized.parts import Stored

_PACKINGS = {"auto_round:auto_gptq": read_gptq, "auto_round:auto_awq": read_awq}


def read_auto_round(fields: Fields, stored: Stored) -> Stored:
    packing = fields.values.get("packing_format", "auto_round:auto_gptq")
    read = _PACKINGS.get(str(packing))
    if read is None or fields.values.get("data_type", "int") != "int":
        raise fields.error(
            f"AutoRound's packing {str(packing)[:40]!r} is not supported: export it as "
            f"{' or '.join(_PACKINGS)}"
        )
    return read(fields, stored)
