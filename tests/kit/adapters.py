"""Random LoRA adapters in PEFT's layout and in GGUF files, and models that are changed likewise."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from kit.tiny_gguf import finish

Float32 = NDArray[np.float32]


def factors(shape: tuple[int, ...], rank: int, seed: int = 0) -> tuple[Float32, Float32]:
    """Return A and B of a weight of this shape."""
    draw = np.random.default_rng([seed, rank, *shape]).standard_normal
    outputs, inputs, *size = shape
    lora_b = draw((outputs, rank, *(1 for _ in size)))
    return draw((rank, inputs, *size)).astype(np.float32), lora_b.astype(np.float32)


def product(lora_a: Float32, lora_b: Float32) -> Float32:
    """Return B A, of convolutions as well."""
    return np.einsum("ri...,or->oi...", lora_a, lora_b.reshape(lora_b.shape[:2]))


def add_to(model: Any, changes: Mapping[str, Any]) -> Any:
    """Add to the weights of a model of transformers, by the names of modules; return it."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for module, delta in changes.items():
            parameters[f"{module}.weight"] += torch.from_numpy(np.asarray(delta, np.float32))
    return model


def assert_close(tensors: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    assert tensors.keys() == wanted.keys()
    for name, tensor in tensors.items():
        np.testing.assert_allclose(tensor, wanted[name], rtol=1e-5, atol=1e-5, err_msg=name)


def write_peft(
    folder: Path,
    matrices: Mapping[str, tuple[Float32, Float32]],
    saved: Mapping[str, Float32] | None = None,
    **config: Any,
) -> Path:
    """Write an adapter; `saved`: whole tensors by the name after PEFT's prefix."""
    folder.mkdir()
    tensors = {
        f"base_model.model.{module}.lora_{side}.weight": matrix
        for module, pair in matrices.items()
        for side, matrix in zip("AB", pair, strict=True)
    }
    tensors |= {f"base_model.model.{name}": array for name, array in (saved or {}).items()}
    save_file(
        {name: np.ascontiguousarray(array) for name, array in tensors.items()},
        folder / "adapter_model.safetensors",
    )
    fields = {"peft_type": "LORA", "r": 2, "lora_alpha": 3, **config}
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    return folder


def write_gguf_adapter(
    path: Path, arrays: Mapping[str, Float32], architecture: str = "llama", **values: Any
) -> Path:
    """Write an adapter as llama.cpp's conversion does, of alpha 3."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_string("general.type", values.get("kind", "adapter"))
    writer.add_string("adapter.type", values.get("adapter", "lora"))
    writer.add_float32("adapter.lora.alpha", values.get("alpha", 3.0))
    for name, array in arrays.items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    finish(writer)
    return path
