"""Helpers for tests of checkpoint folders, for all formats and families."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from safetensors.torch import load_file, save_file

from kvcast.errors import KvcastError


def outcome(read):
    """The error's one line, or None if the folder was read."""
    try:
        read()
    except KvcastError as error:
        message = str(error)
    else:
        return None
    assert message.isprintable()
    return message


def rewrite_weights(folder, change):
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors", metadata={"format": "pt"})


def without(*names: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    return lambda tensors: {n: tensor for n, tensor in tensors.items() if not n.endswith(names)}


def assert_same_tensors(tensors, expected):
    assert set(tensors) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(tensors[name], array, err_msg=name)
