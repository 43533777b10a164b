"""Loads tensors with canonical names into a model, in fp32."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kvcast.errors import KvcastError


def load_weights(model: nn.Module, tensors: Mapping[str, NDArray[np.generic]]) -> None:
    """Load weights into a model on the meta device; KvcastError if names or shapes differ."""
    state = {
        name: torch.from_numpy(np.array(tensor, dtype=np.float32))
        for name, tensor in tensors.items()
    }
    try:
        model.load_state_dict(state, assign=True)
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip()
        raise KvcastError(f"the weights do not fit the model: {first}") from None
    model.requires_grad_(requires_grad=False).eval()
