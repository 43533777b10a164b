"""Models with the shapes of known ones and random weights, on a device, with a text begun.

Time does not depend on what weights are, so nothing is downloaded. Knows nothing of clocks and of
how a step is compiled.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kvcast.models.decoder import DecoderModel
from kvcast.models.whisper import Whisper
from kvcast.programs.decoder import AttentionConstants
from kvcast.programs.decoder import Decode as DecodeText
from kvcast.programs.whisper import Decode as DecodeSpeech
from kvcast.programs.whisper import Encode
from kvcast.spec.decoder import DecoderDimensions
from kvcast.spec.rotary import Rotary
from kvcast.spec.whisper import WhisperDimensions
from kvcast.work import work_of
from kvcast.work.base import Counted

LayerCache = tuple[Tensor, Tensor]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_SEED = 0


class Text(NamedTuple):
    """One row that is being written, in tensors that steps change in place and never replace."""

    token_rs: Tensor  # int64 [1, 1], the newest token, which no cache holds yet
    lengths: Tensor  # int32 [1], positions that the caches hold
    written: Tensor  # int64 [capacity + 1], the token at each position
    caches: Sequence[LayerCache]  # (key, value) [1, kv_heads, slots, d] a layer


@dataclass(frozen=True, kw_only=True)
class RandomModel:
    """A model and the beginning of a text."""

    decode: nn.Module  # takes tokens, lengths, offsets, caches and `given`
    given: tuple[Any, ...] = ()  # the cross caches of an encoder-decoder model
    source: Tensor | None = None  # an encoder's output [1, t, width] that they come from
    begun: Text
    prompt: int  # positions that the text's caches hold
    counted: Counted


@torch.no_grad()
def random_model(dimensions: Any, prompt: int, dtype: torch.dtype, device: str) -> RandomModel:
    """Return a model on a device, with a text of `prompt` random tokens and the next one."""
    make = _RANDOM[type(dimensions)]
    return make(dimensions, prompt, dtype, device)


def _whisper(
    dimensions: WhisperDimensions, prompt: int, dtype: torch.dtype, device: str
) -> RandomModel:
    """Return a Whisper that has heard random features."""
    model = _at_random(partial(Whisper, dimensions), dtype, device)
    encode, decode = Encode(model), DecodeSpeech(model)
    shape = (1, dimensions.n_mels, 2 * dimensions.source_positions)
    features = torch.randn(shape, generator=_generator(device), device=device).to(dtype)
    source = encode.encoder(features)
    given = (encode.decoder.project_cross(source),)
    cache = (1, dimensions.decoder_heads, dimensions.target_positions, dimensions.head_dim)
    caches = _empty([cache] * dimensions.decoder_layers, dtype, device)
    return RandomModel(
        decode=decode,
        given=given,
        source=source,
        begun=_begun(decode, given, caches, prompt, dimensions.target_positions),
        prompt=prompt,
        counted=work_of(dimensions),
    )


def _decoder(
    dimensions: DecoderDimensions, prompt: int, dtype: torch.dtype, device: str
) -> RandomModel:
    """Return a decoder-only model; its rotary tables are rounded to `dtype`, too."""
    model = _at_random(partial(DecoderModel, dimensions), dtype, device)
    constants = AttentionConstants(dimensions).to(device, dtype)
    decode = DecodeText(model.decoder, constants).eval()
    most, heads, head_dim = dimensions.max_positions, dimensions.kv_heads, dimensions.head_dim
    shapes = [(1, heads, window or most, head_dim) for window in dimensions.windows]
    return RandomModel(
        decode=decode,
        begun=_begun(decode, (), _empty(shapes, dtype, device), prompt, most),
        prompt=prompt,
        counted=work_of(dimensions),
    )


_RANDOM: Mapping[type, Callable[..., RandomModel]] = {
    WhisperDimensions: _whisper,
    DecoderDimensions: _decoder,
}


def _at_random(make: Callable[[], nn.Module], dtype: torch.dtype, device: str) -> Any:
    """Return a model with weights that let every part of it move the logits."""
    with torch.device("meta"):
        model = make()
    model = model.to(dtype).to_empty(device=device)
    generator = _generator(device)
    for name, weight in model.named_parameters():
        mean = 1 if name.endswith("norm.weight") else 0
        spread = 2 / weight.shape[-1] ** 0.5 if weight.ndim > 1 else 0.2
        weight.normal_(mean, spread, generator=generator)
    return model.requires_grad_(requires_grad=False).eval()


def _empty(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, device: str) -> list[LayerCache]:
    zeros = partial(torch.zeros, dtype=dtype, device=device)
    return [(zeros(shape), zeros(shape)) for shape in shapes]


def _begun(
    decode: Any, given: tuple[Any, ...], caches: list[LayerCache], prompt: int, capacity: int
) -> Text:
    """Return a text of `prompt` random tokens and the model's next one."""
    device, vocabulary = caches[0][0].device, decode.decoder.embedding.num_embeddings
    generator = _generator(str(device))
    tokens_rs = torch.randint(vocabulary, (1, prompt), generator=generator, device=device)
    lengths = torch.zeros(1, dtype=torch.int32, device=device)
    last = torch.tensor([prompt - 1], device=device)
    logits_rpv, _ = decode(tokens_rs, lengths, last, caches, *given)
    written = torch.zeros(capacity + 1, dtype=torch.int64, device=device)
    newest = logits_rpv[:, -1].argmax(-1)
    written[: prompt + 1] = torch.cat([tokens_rs[0], newest])
    return Text(token_rs=newest[:, None], lengths=lengths + prompt, written=written, caches=caches)


def _generator(device: str) -> torch.Generator:
    return torch.Generator(device).manual_seed(_SEED)


@dataclass(frozen=True, kw_only=True)
class Published:
    """Sizes of a known model, and how its steps are timed unless it is said otherwise."""

    dimensions: Any
    prompt: int  # tokens before the first step
    new: int  # steps of a run


PUBLISHED: Mapping[str, Published] = {
    "whisper-large-v3-turbo": Published(
        dimensions=WhisperDimensions(
            n_mels=128,
            vocab_size=51866,
            d_model=1280,
            encoder_layers=32,
            encoder_heads=20,
            decoder_layers=4,
            decoder_heads=20,
        ),
        prompt=4,
        new=200,
    ),
    "mistral-7b": Published(
        dimensions=DecoderDimensions(
            architecture="mistral",
            vocab_size=32000,
            width=4096,
            inner=14336,
            heads=32,
            kv_heads=8,
            head_dim=128,
            windows=(4096,) * 32,
            max_positions=32768,
            rotary=Rotary(base=10000.0),
            norm_eps=1e-5,
            attention_scale=128**-0.5,
            tied=False,
        ),
        prompt=512,
        new=128,
    ),
}
