"""FastConformer encoders in Hugging Face layout, which several model types have.

Config fields, tensor-name map and weight transforms: BatchNorm and half-step FFN factors are folded
into the matrices, which are stored in kernel layout.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor, read_json_object
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.tensor_names import of_modules, pick, swap, zeros
from kvcast.errors import KvcastError
from kvcast.families.conformer import Conformer
from kvcast.spec.sizes import MOST_LAYERS

DEFAULTS: Mapping[str, Any] = {
    "model_type": "parakeet_encoder",
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "intermediate_size": 4096,
    "hidden_act": "silu",
    "attention_bias": True,
    "convolution_bias": True,
    "conv_kernel_size": 9,
    "subsampling_factor": 8,
    "subsampling_conv_channels": 256,
    "num_mel_bins": 80,
    "subsampling_conv_kernel_size": 3,
    "subsampling_conv_stride": 2,
    "max_position_embeddings": 5000,
    "scale_input": True,
}
"""Of fields that configurations leave out, as transformers has them."""

# Fixed in kvcast, and the same in all published ones.
_FIXED = {
    "model_type": "parakeet_encoder",
    "subsampling_conv_kernel_size": 3,
    "subsampling_conv_stride": 2,
}
_LONGEST = 750  # positions that are encoded at once: a minute, where a position is 80 ms
_BATCH_EPSILON = np.float32(1e-5)

_LAYER = "encoder.layers.{i}"
_MODULES: Mapping[str, Sequence[str]] = {
    f"{_LAYER}.feed_forward_norm": [f"{_LAYER}.norm_feed_forward1"],
    f"{_LAYER}.feed_forward.up": [f"{_LAYER}.feed_forward1.linear1"],
    f"{_LAYER}.feed_forward.down": [f"{_LAYER}.feed_forward1.linear2"],
    f"{_LAYER}.self_attention_norm": [f"{_LAYER}.norm_self_att"],
    f"{_LAYER}.self_attention.qkv": [f"{_LAYER}.self_attn.{x}_proj" for x in "qkv"],
    f"{_LAYER}.self_attention.out": [f"{_LAYER}.self_attn.o_proj"],
    f"{_LAYER}.convolution_norm": [f"{_LAYER}.norm_conv"],
    f"{_LAYER}.convolution.in": [f"{_LAYER}.conv.pointwise_conv1"],
    f"{_LAYER}.convolution.out": [f"{_LAYER}.conv.pointwise_conv2"],
    f"{_LAYER}.last_feed_forward_norm": [f"{_LAYER}.norm_feed_forward2"],
    f"{_LAYER}.last_feed_forward.up": [f"{_LAYER}.feed_forward2.linear1"],
    f"{_LAYER}.last_feed_forward.down": [f"{_LAYER}.feed_forward2.linear2"],
    f"{_LAYER}.norm": [f"{_LAYER}.norm_out"],
    "encoder.subsampling.out": ["encoder.subsampling.linear"],
    **{
        f"encoder.subsampling.{i}.mixed": [f"encoder.subsampling.layers.{3 * i}"]
        for i in range(1, 8)
    },
}
NAMES: Mapping[str, Sequence[str]] = {
    **of_modules(_MODULES),
    f"{_LAYER}.self_attention.distance.weight": [f"{_LAYER}.self_attn.relative_k_proj.weight"],
    f"{_LAYER}.self_attention.content_shift": [f"{_LAYER}.self_attn.bias_u"],
    f"{_LAYER}.self_attention.distance_shift": [f"{_LAYER}.self_attn.bias_v"],
    f"{_LAYER}.convolution.kernel": [f"{_LAYER}.conv.depthwise_conv.weight"],
    f"{_LAYER}.convolution.shift": [f"{_LAYER}.conv.depthwise_conv.bias"],
    **{
        f"encoder.subsampling.{i}.{ours}": [
            f"encoder.subsampling.layers.{max(0, 3 * i - 1)}.{leaf}"
        ]
        for i in range(8)
        for ours, leaf in (("kernel", "weight"), ("shift", "bias"))
    },
}
"""Names of tensors that `conformer_tensors` returns, by canonical name."""


def conformer_of(fields: Fields) -> Conformer:
    """KvcastError, naming the fields, for unsupported values; `fields` has all of `DEFAULTS`."""
    fields.require(_FIXED)
    width, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    if fields.values.get("head_dim") not in (None, width // heads):
        raise fields.error(f"head_dim must be hidden_size over heads, {width // heads}")
    factor = fields.whole("subsampling_factor", least=2, most=1 << 7)
    if factor & (factor - 1):
        raise fields.error(f"subsampling_factor must be a power of 2, not {factor}")
    for name in ("attention_bias", "convolution_bias"):
        fields.flag(name)
    return fields.make(
        Conformer,
        n_mels=fields.whole("num_mel_bins"),
        width=width,
        inner=fields.whole("intermediate_size"),
        heads=heads,
        layers=fields.whole("num_hidden_layers", most=MOST_LAYERS),
        kernel=fields.whole("conv_kernel_size"),
        channels=fields.whole("subsampling_conv_channels"),
        halvings=factor.bit_length() - 1,
        positions=min(_LONGEST, fields.whole("max_position_embeddings")),
        activation=fields.activation("hidden_act"),
        scaled=fields.flag("scale_input"),
    )


def conformer_tensors(
    stored: Mapping[str, StoredTensor], encoder: Conformer, fields: Fields, label: str
) -> dict[str, StoredTensor]:
    """By the names of `NAMES`; KvcastError, naming `label`, for missing or misshapen tensors."""
    tensors = Tensors(stored, label)
    width, channels = encoder.width, encoder.channels
    for i in range(encoder.halvings):
        name = f"encoder.subsampling.layers.{max(0, 3 * i - 1)}.weight"
        tensors.change(name, (channels, 1, 3, 3), (3, 3, channels), _kernel)
        if i:
            name = f"encoder.subsampling.layers.{3 * i}.weight"
            tensors.change(name, (channels, channels, 1, 1), (channels, channels))
    columns = (encoder.n_mels >> encoder.halvings) * channels

    def bands_first(matrix: NDArray[Any]) -> NDArray[Any]:
        return matrix.reshape(width, channels, -1).swapaxes(1, 2)

    name = "encoder.subsampling.linear.weight"
    tensors.change(name, (width, columns), (width, columns), bands_first)
    for i in range(encoder.layers):
        _of_layer(tensors, encoder, fields, _LAYER.format(i=i))
    return tensors.changed


def check_features(folder: Path, encoder: Conformer) -> None:
    path, inside = folder / "processor_config.json", "feature_extractor"
    fields = read_json_object(path).get(inside, {}) if path.is_file() else {}
    if not fields:
        path = folder / "preprocessor_config.json"
        fields = read_json_object(path) if path.is_file() else {}
    if not isinstance(fields, dict):
        raise KvcastError(f"{path}: {inside} must be an object")
    needed = {**_FEATURES, "feature_size": encoder.n_mels}
    Fields(values=fields, label=str(path)).require(needed)


_FEATURES = {
    "sampling_rate": 16_000,
    "hop_length": 160,
    "n_fft": 512,
    "win_length": 400,
    "preemphasis": 0.97,
}


def _of_layer(tensors: "Tensors", encoder: Conformer, fields: Fields, layer: str) -> None:
    width, inner, heads = encoder.width, encoder.inner, encoder.heads
    attention, convolution = f"{layer}.self_attn", f"{layer}.conv"
    attends, convolves = fields.flag("attention_bias"), fields.flag("convolution_bias")
    for part in ("feed_forward1", "feed_forward2"):
        for leaf, size in {"linear1": inner, "linear2": width}.items():
            tensors.bias(f"{layer}.{part}.{leaf}.bias", size, there=attends)
        shape = (width, inner)
        tensors.change(f"{layer}.{part}.linear2.weight", shape, shape, halve)
        tensors.change(f"{layer}.{part}.linear2.bias", shape[:1], shape[:1], halve)
    for x in "qkvo":
        tensors.bias(f"{attention}.{x}_proj.bias", width, there=attends)
    for x in "uv":
        tensors.change(f"{attention}.bias_{x}", (heads, width // heads), (width,))
    for leaf, size in {"pointwise_conv1": 2 * width, "pointwise_conv2": width}.items():
        tensors.bias(f"{convolution}.{leaf}.bias", size, there=convolves)
        turned = swap if size != width else None
        tensors.change(f"{convolution}.{leaf}.weight", (size, width, 1), (size, width), turned)
        if turned:
            tensors.change(f"{convolution}.{leaf}.bias", (size,), (size,), turned)
    tensors.bias(f"{convolution}.depthwise_conv.bias", width, there=convolves)
    given = (width, 1, encoder.kernel)
    depthwise, norm = f"{convolution}.depthwise_conv", f"{convolution}.norm"
    fold_norm(tensors, depthwise, norm, given, encoder.kernel)


def fold_norm(
    tensors: "Tensors", convolution: str, norm: str, given: tuple[int, ...], length: int
) -> None:
    """Fold BatchNorm into the kernel before it, which becomes [length, 1, channels].

    Files have it as `given` [channels, 1, k], with a bias; zeros follow where it is shorter.
    """
    channels = given[0]
    leaves = ("weight", "bias", "running_mean", "running_var")
    parts = [tensors.of(f"{norm}.{leaf}", (channels,)) for leaf in leaves]

    def read() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        gain, shift, mean, variance = (np.asarray(part.read(), np.float32) for part in parts)
        return gain / np.sqrt(variance + _BATCH_EPSILON), shift, mean

    def fold(kernel: NDArray[Any]) -> NDArray[Any]:
        whole = np.pad(kernel, ((0, 0), (0, 0), (0, length - given[-1])))
        return _kernel(whole[..., None] * read()[0][:, None, None, None])

    def fold_bias(bias: NDArray[Any]) -> NDArray[Any]:
        factors, shift, mean = read()
        folded_bias: NDArray[Any] = (bias - mean) * factors + shift
        return folded_bias

    tensors.change(f"{convolution}.weight", given, (length, 1, channels), fold)
    tensors.change(f"{convolution}.bias", (channels,), (channels,), fold_bias)


def _kernel(kernel: NDArray[Any]) -> NDArray[Any]:
    return kernel[:, 0].transpose(1, 2, 0)


def halve(matrix: NDArray[Any]) -> NDArray[Any]:
    return matrix * np.float32(0.5)


class Tensors:
    """Tensors of files, some of them changed as they are read."""

    def __init__(self, stored: Mapping[str, StoredTensor], label: str) -> None:
        self.changed = dict(stored)
        self._label = label

    def of(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        tensor = self.changed.get(name)
        if tensor is None:
            raise KvcastError(f"{self._label} has no tensor {name}: it is not a whole model")
        if tensor.shape != shape:
            raise KvcastError(
                f"{self._label}: tensor {name} has shape {list(tensor.shape)}, "
                f"but the configuration asks for {list(shape)}"
            )
        return tensor

    def change(
        self,
        name: str,
        given: tuple[int, ...],
        shape: tuple[int, ...],
        change: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
    ) -> None:
        tensor = self.of(name, given)

        def read() -> NDArray[Any]:
            array = tensor.read()
            return np.ascontiguousarray(array if change is None else change(array)).reshape(shape)

        self.changed[name] = StoredTensor(
            shape=shape, read=read, problem=tensor.problem, kinds=tensor.kinds, nbytes=tensor.nbytes
        )

    def part(self, name: str, shape: tuple[int, ...], to: str, rows: slice) -> None:
        tensor = self.of(name, shape)
        self.changed[to] = pick(tensor, np.arange(shape[0])[rows])

    def rename(self, name: str, to: str) -> None:
        if name in self.changed:
            self.changed[to] = self.changed.pop(name)

    def bias(self, name: str, size: int, *, there: bool) -> None:
        if not there:
            self.changed[name] = zeros((size,))
