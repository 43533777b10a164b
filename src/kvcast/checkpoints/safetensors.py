"""Memory-maps safetensors files, one or several with an index, as lazily read tensors by name.

Nothing is ever unpickled.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from kvcast.checkpoints.base import (
    StoredTensor,
    map_file,
    read_json_object,
    require_file,
    tensor_from_bytes,
    unreadable_tensor,
)
from kvcast.checkpoints.unsupported import refuse_incomplete
from kvcast.errors import InputOutputError, KvcastError

_KINDS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Readers of quantized formats interpret them.
_CODES = {
    **{"U8": "u1", "F8_E4M3": "u1", "F8_E8M0": "u1", "I8": "i1"},
    **{"I32": "<i4", "U32": "<u4", "I64": "<i8"},
}


def weight_files(folder: Path, stem: str) -> list[Path]:
    """List `stem`.safetensors, or its index and the files that it names; empty if neither exists.

    Raises KvcastError for a damaged index, or files outside the folder or of another kind;
    InputMissingError for a missing file.
    """
    whole = folder / f"{stem}.safetensors"
    if whole.is_file():
        return [whole]
    index = folder / f"{stem}.safetensors.index.json"
    if index.is_file():
        return [index, *(folder / name for name in _shard_names(index))]
    return []


def read_weights(paths: Iterable[Path], ignored: str | None = None) -> dict[str, StoredTensor]:
    stored: dict[str, StoredTensor] = {}
    for path in paths:
        if path.suffix == ".safetensors":
            stored |= read_safetensors(path, ignored)
    return stored


def read_safetensors(path: Path, ignored: str | None = None) -> dict[str, StoredTensor]:
    """Map float16 and float32 unchanged, bfloat16 as float32; InputOutputError for damage.

    Tensors of other dtypes may not be used. Those whose names end in `ignored` are left out.
    """
    data = map_file(path)
    try:
        # The library validates the header; its NumPy interface lacks bfloat16 and makes copies.
        with safe_open(path, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        reason = "".join(filter(str.isprintable, str(error)))
        raise InputOutputError(f"{path} is damaged ({reason}): fetch it again") from None
    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8:start].tobytes())
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        if not name.isprintable():
            raise InputOutputError(
                f"{path} is damaged: {name!r} is not a tensor's name; fetch it again"
            )
        if name.rpartition(".")[2] == ignored:
            continue
        label = f"{path}: tensor {name}"
        begin, end = (start + offset for offset in entry["data_offsets"])
        kind, shape = _KINDS.get(entry["dtype"]), tuple(entry["shape"])
        if kind is None:
            problem = f"is {entry['dtype']}, not one of {', '.join(_KINDS)}: convert it first"
            tensor = unreadable_tensor(shape, f"{label} {problem}")
            if entry["dtype"] in _CODES:
                codes = data[begin:end].view(_CODES[entry["dtype"]]).reshape(shape)
                tensor = replace(
                    tensor,
                    read=partial(np.require, codes, requirements="A"),
                    kinds=frozenset({entry["dtype"]}),
                    nbytes=end - begin,
                )
            tensors[name] = tensor
            continue
        tensors[name] = tensor_from_bytes(data[begin:end], kind, shape, label)
    return tensors


def _shard_names(index: Path) -> list[str]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputOutputError(f"{index} has no weight_map: fetch it again")
    names = set(weight_map.values())
    for name in names:
        # Symbolic links are allowed: the hub's cache consists of them.
        if not isinstance(name, str) or "/" in name or "\\" in name or "\0" in name:
            raise KvcastError(f"{index} names {name!r}, which is not a file in its own folder")
        if not name.endswith(".safetensors") or not name.isprintable():
            raise KvcastError(f"{index} names {name!r}, which is not a safetensors file")
        if not (index.parent / name).is_file():
            refuse_incomplete(index.parent)
        require_file(index.parent / name, f"{index.name} names it: fetch it too")
    return sorted(names)
