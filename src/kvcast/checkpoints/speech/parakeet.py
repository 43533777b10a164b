"""Interprets Parakeets in Hugging Face layout: config.json, tensor names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import Checkpoint, LazyTensors, StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.huggingface_text import HuggingFaceFamily, read_text
from kvcast.checkpoints.speech import conformer
from kvcast.checkpoints.tensor_names import fill_evenly
from kvcast.families.parakeet import ParakeetDimensions
from kvcast.spec.sizes import MOST_LAYERS

_MOST_SYMBOLS = 1 << 10


@dataclass(frozen=True, kw_only=True)
class _Kind:
    blank: str  # the field with the token that means "nothing here"
    defaults: Mapping[str, Any]
    predicts: bool = True
    durations: bool = False


_TRANSDUCER: Mapping[str, Any] = {
    "vocab_size": 8193,
    "decoder_hidden_size": 640,
    "num_decoder_layers": 2,
    "hidden_act": "relu",
    "max_symbols_per_step": 10,
    "blank_token_id": 8192,
}
_KINDS: Mapping[str, _Kind] = {
    "parakeet_ctc": _Kind(
        blank="pad_token_id", predicts=False, defaults={"vocab_size": 1025, "pad_token_id": 1024}
    ),
    "parakeet_rnnt": _Kind(blank="blank_token_id", defaults=_TRANSDUCER),
    "parakeet_tdt": _Kind(
        blank="blank_token_id",
        durations=True,
        defaults={**_TRANSDUCER, "durations": [0, 1, 2, 3, 4]},
    ),
}

_LSTM = "decoder.lstm.{matrix}_l{{i}}"
NAMES: Mapping[str, Sequence[str]] = {
    **conformer.NAMES,
    "encoder.out.weight": ["encoder_projector.weight"],
    "encoder.out.bias": ["encoder_projector.bias"],
    "prediction.embedding.weight": ["decoder.embedding.weight"],
    "prediction.layers.{i}.weight": [_LSTM.format(matrix="weight")],
    "prediction.layers.{i}.bias": [_LSTM.format(matrix="bias")],
    "prediction.out.weight": ["decoder.decoder_projector.weight"],
    "prediction.out.bias": ["decoder.decoder_projector.bias"],
    "head.weight": ["joint.head.weight"],
    "head.bias": ["joint.head.bias"],
}


def read_parakeet(
    folder: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> Checkpoint:
    label = str(folder / "config.json")
    dimensions = parakeet_dimensions(config, label)
    conformer.check_features(folder, dimensions.encoder)
    return Checkpoint(
        dimensions=dimensions,
        tensors=parakeet_tensors(stored, config, dimensions, str(folder)),
        # A text ends only with its audio; any token without text will do.
        text=read_text(folder, {"eos_token_id": 0}),
        source=f"Hugging Face folder {folder}",
    )


def parakeet_tensors(
    stored: Mapping[str, StoredTensor],
    config: Mapping[str, Any],
    dimensions: ParakeetDimensions,
    label: str,
) -> LazyTensors:
    """Return tensors by canonical name; `stored` by the names of transformers' classes.

    Raises KvcastError, naming `label`, for missing or misshapen ones.
    """
    tensors = conformer.conformer_tensors(
        stored, dimensions.encoder, _encoder(config, label), label
    )
    changed = conformer.Tensors(tensors, label)
    if dimensions.prediction_layers:
        for i in range(dimensions.prediction_layers):
            _join(changed, i, dimensions.width)
    else:
        shape = (dimensions.vocab_size, dimensions.width)
        changed.change("ctc_head.weight", (*shape, 1), shape)
        for leaf in ("weight", "bias"):
            changed.rename(f"ctc_head.{leaf}", f"joint.head.{leaf}")
    kind = f"a {dimensions.architecture} model"
    return fill_evenly(dimensions, NAMES, changed.changed, label, kind, lenient=True)


def parakeet_dimensions(config: Mapping[str, Any], label: str) -> ParakeetDimensions:
    kind = _KINDS[config["model_type"]]
    fields = Fields(values=config, label=label).over(kind.defaults)
    encoder, tokens = conformer.conformer_of(_encoder(config, label)), fields.whole("vocab_size")
    durations = fields.values["durations"] if kind.durations else []
    if not isinstance(durations, list):
        raise fields.error("durations must list numbers of positions")
    predicted: dict[str, Any] = {"width": encoder.width}
    if kind.predicts:
        predicted = {
            "width": fields.whole("decoder_hidden_size"),
            "prediction_layers": fields.whole("num_decoder_layers", most=MOST_LAYERS),
            "activation": fields.activation("hidden_act"),
            "most_symbols": fields.whole("max_symbols_per_step", most=_MOST_SYMBOLS),
        }
    return fields.make(
        ParakeetDimensions,
        architecture=config["model_type"],
        encoder=encoder,
        tokens=tokens,
        blank=fields.whole(kind.blank, least=0),
        vocab_size=tokens + len(durations),
        durations=tuple(durations),
        **predicted,
    )


def _encoder(config: Mapping[str, Any], label: str) -> Fields:
    fields = Fields(values=config, label=label)
    return fields.group_over("encoder_config", conformer.DEFAULTS)


def _join(tensors: conformer.Tensors, layer: int, width: int) -> None:
    parts = {
        leaf: [tensors.of(f"decoder.lstm.{leaf}_{side}_l{layer}", shape) for side in ("ih", "hh")]
        for leaf, shape in (("weight", (4 * width, width)), ("bias", (4 * width,)))
    }

    def matrix() -> NDArray[Any]:
        return np.concatenate([part.read() for part in parts["weight"]], axis=1)

    def bias() -> NDArray[Any]:
        first, second = (np.asarray(part.read(), np.float32) for part in parts["bias"])
        summed: NDArray[np.float32] = first + second
        return summed

    tensors.changed |= {
        f"decoder.lstm.weight_l{layer}": StoredTensor(shape=(4 * width, 2 * width), read=matrix),
        f"decoder.lstm.bias_l{layer}": StoredTensor(shape=(4 * width,), read=bias),
    }


PARAKEET = HuggingFaceFamily(
    family=ParakeetDimensions,
    model_types=tuple(_KINDS),
    dimensions=parakeet_dimensions,
    read=read_parakeet,
)
