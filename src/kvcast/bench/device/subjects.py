"""Models with the shapes of known ones and random weights, on a device, with a text begun.

Time does not depend on what weights are, so nothing is downloaded. Knows nothing of clocks and of
how a step is compiled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

LayerCache = tuple[Tensor, Tensor]

_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Text:
    """One row that is being written, in tensors that steps change in place and never replace.

    Attributes:
        token_rs: int64 [1, 1], the newest token, which no cache holds yet.
        lengths: int32 [1], positions that the caches hold.
        written: int64 [capacity + 1], the token at each position.
        caches: (key, value) [1, kv_heads, slots, d] a layer.

    """

    token_rs: Tensor
    lengths: Tensor
    written: Tensor
    caches: Sequence[LayerCache]

    def copied(self) -> "Text":
        """Return the same text in tensors of its own."""
        return Text(
            token_rs=self.token_rs.clone(),
            lengths=self.lengths.clone(),
            written=self.written.clone(),
            caches=[(key.clone(), value.clone()) for key, value in self.caches],
        )

    def take_back(self, begun: "Text") -> None:
        """Return to an earlier state of this text, in the same tensors.

        Caches too: a ring's later positions displace those that the earlier text needs.
        """
        for own, earlier in zip(self._tensors(), begun._tensors(), strict=True):
            own.copy_(earlier)

    def _tensors(self) -> list[Tensor]:
        caches = [part for layer in self.caches for part in layer]
        return [self.token_rs, self.lengths, self.written, *caches]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is measured.

    Attributes:
        name: for people and for the JSON object.
        decode: the program; takes tokens, lengths, offsets, caches and `given`.
        given: what else it takes: the cross caches.
        source: an encoder's output [1, t, width] that they come from; None without an encoder.
        begun: a text of some tokens.
        prompt: how many of them the caches hold.
        capacity: positions that a text may have.
        weights: numbers that a step reads of the weights.
        dimensions: as JSON keeps them.

    """

    name: str
    decode: nn.Module
    given: tuple[Any, ...]
    source: Tensor | None
    begun: Text
    prompt: int
    capacity: int
    weights: int
    dimensions: Mapping[str, Any]

    def step_bytes(self, held: int) -> int:
        """Return the bytes that a step must read whose new position is number `held` from 1.

        Every weight once, of self caches what is held (a ring holds no more than its slots), and
        the cross caches.
        """
        caches = sum(
            2 * key.shape[1] * min(held, key.shape[2]) * key.shape[3]
            for key, _ in self.begun.caches
        )
        cross: int = sum(
            key.numel() + value.numel() for layers in self.given for key, value in layers
        )
        return (self.weights + caches + cross) * self.begun.caches[0][0].element_size()


@torch.no_grad()
def whisper_subject(
    name: str, dimensions: WhisperDimensions, prompt: int, numbers: torch.dtype, device: str
) -> Subject:
    """Return a Whisper that has heard random features."""
    with torch.device("meta"):
        model = Whisper(dimensions)
    model = _at_random(model, numbers, device)
    encode, decode = Encode(model), DecodeSpeech(model)
    shape = (1, dimensions.n_mels, 2 * dimensions.source_positions)
    features = torch.randn(shape, generator=_generator(device), device=device).to(numbers)
    source = encode.encoder(features)
    cross = encode.decoder.project_cross(source)
    heads, capacity = dimensions.decoder_heads, dimensions.target_positions
    shapes = [(1, heads, capacity, dimensions.head_dim)] * dimensions.decoder_layers
    unread = [layer.cross_attention.key_value for layer in model.decoder.layers]
    weights = _numbers_of(model.decoder.layers, model.decoder.norm, model.decoder.embedding)
    return Subject(
        name=name,
        decode=decode,
        given=(cross,),
        source=source,
        begun=_begun(decode, (cross,), shapes, prompt, capacity, numbers, device),
        prompt=prompt,
        capacity=capacity,
        weights=weights - _numbers_of(*unread),
        dimensions=vars(dimensions),
    )


@torch.no_grad()
def decoder_subject(
    name: str, dimensions: DecoderDimensions, prompt: int, numbers: torch.dtype, device: str
) -> Subject:
    """Return a decoder-only model; its rotary tables are rounded to `numbers`, too."""
    with torch.device("meta"):
        model = DecoderModel(dimensions)
    model = _at_random(model, numbers, device)
    decoder = model.decoder
    decode = DecodeText(decoder, AttentionConstants(dimensions).to(device, numbers)).eval()
    shapes = [
        (1, dimensions.kv_heads, window or dimensions.max_positions, dimensions.head_dim)
        for window in dimensions.windows
    ]
    head = decoder.embedding if decoder.head is None else decoder.head
    return Subject(
        name=name,
        decode=decode,
        given=(),
        source=None,
        begun=_begun(decode, (), shapes, prompt, dimensions.max_positions, numbers, device),
        prompt=prompt,
        capacity=dimensions.max_positions,
        weights=_numbers_of(decoder.layers, decoder.norm, head),
        dimensions=dimensions.to_json(),
    )


def _at_random(model: nn.Module, numbers: torch.dtype, device: str) -> Any:
    """Give a model on the meta device weights that let every part of it move the logits."""
    model = model.to(numbers).to_empty(device=device)
    generator = _generator(device)
    for name, weight in model.named_parameters():
        mean = 1 if name.endswith("norm.weight") else 0
        spread = 2 / weight.shape[-1] ** 0.5 if weight.ndim > 1 else 0.2
        weight.normal_(mean, spread, generator=generator)
    return model.requires_grad_(requires_grad=False).eval()


def _begun(
    decode: Any,
    given: tuple[Any, ...],
    shapes: Sequence[tuple[int, ...]],
    prompt: int,
    capacity: int,
    numbers: torch.dtype,
    device: str,
) -> Text:
    """Return a text of `prompt` random tokens and the model's next one."""
    vocabulary = decode.decoder.embedding.num_embeddings
    caches = [
        (torch.zeros(s, dtype=numbers, device=device), torch.zeros(s, dtype=numbers, device=device))
        for s in shapes
    ]
    tokens_rs = torch.randint(vocabulary, (1, prompt), generator=_generator(device), device=device)
    lengths = torch.zeros(1, dtype=torch.int32, device=device)
    last = torch.tensor([prompt - 1], device=device)
    logits_rpv, _ = decode(tokens_rs, lengths, last, caches, *given)
    written = torch.zeros(capacity + 1, dtype=torch.int64, device=device)
    newest = logits_rpv[:, -1].argmax(-1)
    written[: prompt + 1] = torch.cat([tokens_rs[0], newest])
    return Text(token_rs=newest[:, None], lengths=lengths + prompt, written=written, caches=caches)


def _numbers_of(*modules: nn.Module) -> int:
    return sum(weight.numel() for module in modules for weight in module.parameters())


def _generator(device: str) -> torch.Generator:
    return torch.Generator(device).manual_seed(_SEED)


TURBO = WhisperDimensions(
    n_mels=128,
    vocab_size=51866,
    d_model=1280,
    encoder_layers=32,
    encoder_heads=20,
    decoder_layers=4,
    decoder_heads=20,
)
MISTRAL_7B = DecoderDimensions(
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
)
