"""Reads one head's relative position bias from a T5's checkpoint. Knows no file format."""

from kvcast.bundle.manifest import is_bundle
from kvcast.checkpoints.source import locate, open_checkpoint
from kvcast.errors import KvcastError, UsageError
from kvcast.families.t5 import T5Dimensions
from kvcast.inspect.bias import Bias


def bias_of(model: str, head: int) -> Bias:
    """Return the bias of one head of a T5's checkpoint; raises KvcastError with one line."""
    located = locate(model)
    if is_bundle(located):
        raise UsageError(f"{model} is a bundle: give the checkpoint that it was exported from")
    checkpoint = open_checkpoint(located)
    if not isinstance(checkpoint.dimensions, T5Dimensions):
        raise KvcastError(
            f"{model} is a {checkpoint.family} model: only a T5 has a relative position bias"
        )
    sizes = checkpoint.dimensions
    if head >= sizes.heads:
        raise UsageError(f"{model} has heads 0 to {sizes.heads - 1}, and no head {head}")
    if sizes.layer_bias:
        raise KvcastError(f"{model} has biases of each layer: only one for all layers is shown")
    encoder, decoder = (
        [f"{number:.2f}" for number in checkpoint.tensors[f"{stack}.bias.weight"][:, head]]
        for stack in ("encoder", "decoder")
    )
    return Bias(
        title=f"{model}, head {head}; {sizes.buckets} buckets; distances from "
        f"{sizes.max_distance} on share one",
        max_distance=sizes.max_distance,
        encoder=encoder,
        decoder=decoder,
    )
