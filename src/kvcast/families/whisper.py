"""Whisper as data.

Canonical tensors are [out, in], as in torch's Linear. Query, key and value of self-attention are
one tensor, and so are key and value of cross-attention. The output head is the embedding.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.families.base import Family, PrecisionRoles, Probe
from kvcast.families.blocks import (
    TOKENS,
    attend,
    cache_of,
    join_rows,
    new_positions,
    project_cross_caches,
    select_asked,
    split_rows,
)
from kvcast.families.programs import (
    ALIGNMENT_QUERIES,
    Argument,
    ProgramSignature,
    cross_argument,
    decode_program,
    encode_program,
    self_and_cross_caches,
)
from kvcast.spec.program import Constant, Node, Program, ProgramWriter
from kvcast.spec.sizes import require_heads, require_layers, require_positive

_EPSILON, _KERNEL = 1e-5, 3  # of layer norms, of convolutions
_ALIGNED_CHANNELS = "aligned_channels"

Heads = tuple[tuple[int, int], ...]
"""Pairs of a decoder layer and one of its heads, both counted from 0."""


@dataclass(frozen=True, kw_only=True)
class WhisperDimensions:
    """`alignment_heads`: heads whose cross-attention follows the speech, for word timestamps.

    By default, as in openai-whisper, all heads of the upper half of the decoder's layers.
    """

    n_mels: int
    vocab_size: int
    d_model: int
    encoder_layers: int
    encoder_heads: int
    decoder_layers: int
    decoder_heads: int
    source_positions: int = 1500
    target_positions: int = 448
    alignment_heads: Heads = ()

    def __post_init__(self) -> None:
        sizes = asdict(self)
        del sizes["alignment_heads"]
        require_positive(**sizes)
        require_layers(self.encoder_layers, self.decoder_layers)
        require_heads(self.d_model, self.encoder_heads, self.decoder_heads, name="d_model")
        if not self.alignment_heads:
            object.__setattr__(self, "alignment_heads", self._upper_half())
        self._check_alignment_heads()

    def _upper_half(self) -> Heads:
        layers, heads = self.decoder_layers, self.decoder_heads
        return tuple((layer, head) for layer in range(layers // 2, layers) for head in range(heads))

    @property
    def has_known_heads(self) -> bool:
        """Whether its alignment heads were selected for it, or for a model like it."""
        return self.alignment_heads != self._upper_half()

    def _check_alignment_heads(self) -> None:
        for layer, head in self.alignment_heads:
            if not (0 <= layer < self.decoder_layers and 0 <= head < self.decoder_heads):
                raise KvcastError(
                    f"alignment_heads names head {head} of layer {layer}, counted from 0, and the "
                    f"decoder has {self.decoder_layers} layers of {self.decoder_heads} heads"
                )
        if len(set(self.alignment_heads)) < len(self.alignment_heads):
            raise KvcastError("alignment_heads names a head twice")

    @property
    def head_dim(self) -> int:
        return self.d_model // self.decoder_heads

    @property
    def is_multilingual(self) -> bool:
        """English-only vocabularies have at most 51,864 entries."""
        return self.vocab_size >= 51865

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        heads = head_pairs(fields.get("alignment_heads"))
        if not heads:
            raise KvcastError("not the dimensions of a Whisper model: no alignment_heads")
        try:
            return cls(**{**fields, "alignment_heads": heads})
        except TypeError as error:
            raise KvcastError(f"not the dimensions of a Whisper model: {error}") from None


def head_pairs(listed: object) -> Heads:
    """JSON's [layer, head] pairs as tuples; KvcastError for anything else."""
    pairs = []
    for item in listed if isinstance(listed, list | tuple) else [listed]:
        if not isinstance(item, list | tuple) or [type(number) for number in item] != [int, int]:
            raise KvcastError("alignment_heads must be a list of pairs of a layer and a head")
        pairs.append((item[0], item[1]))
    return tuple(pairs)


def _programs(dimensions: WhisperDimensions) -> Mapping[str, ProgramSignature]:
    own, cross = self_and_cross_caches(dimensions)
    frames = 2 * dimensions.source_positions
    features = Argument(
        name="features", shape=("batch", dimensions.n_mels, frames), dtype="float32"
    )
    read = cross_argument(cross, dimensions.source_positions)
    return {
        "encode": encode_program(cross, features),
        "decode": decode_program([own], ["logits", ALIGNMENT_QUERIES], read),
    }


def _encode(write: ProgramWriter, dimensions: WhisperDimensions) -> Program:
    heads, d = dimensions.encoder_heads, dimensions.d_model
    scale, square = (d // heads) ** -0.5, (d, d)
    x, shape = Node("features"), (d, dimensions.n_mels, _KERNEL)
    x = write.conv1d(x, "encoder.conv1", shape, stride=1, padding=1, activation="gelu")
    shape = d, d, _KERNEL
    x = write.conv1d(x, "encoder.conv2", shape, stride=2, padding=1, activation="gelu")
    table = write.tensor("encoder.positions", dimensions.source_positions, d)
    x = write.step("add", write.step("transpose", x, 1, 2), table)
    for i in range(dimensions.encoder_layers):
        layer = f"encoder.layers.{i}"
        qkv = _qkv(write, x, f"{layer}.attention", d)
        mixed = write.step("encoder_attention", *qkv, heads, scale)
        x = write.linear(mixed, f"{layer}.attention.out", square, bias=True, residual=x)
        x = _feed_forward(write, x, layer, d)
    encoded = write.layer_norm(x, "encoder.norm", d, _EPSILON)
    sizes = dimensions.decoder_layers, (2 * d, d), dimensions.decoder_heads
    return write.program(**project_cross_caches(write, encoded, *sizes, bias=True))


def _decode(write: ProgramWriter, dimensions: WhisperDimensions) -> Program:
    """Write `decode`, which also returns the alignment heads' queries [rows, new, h * d]."""
    scale, d = dimensions.head_dim**-0.5, dimensions.d_model
    square, vocab = (d, d), (dimensions.vocab_size, d)
    places = dimensions.target_positions, d
    positions = write.embedding("decoder.positions", new_positions(write), places)
    x = write.step("add", write.embedding("decoder.embedding.weight", TOKENS, vocab), positions)
    queries = []
    for i in range(dimensions.decoder_layers):
        layer = f"decoder.layers.{i}"
        mixed = attend(write, i, _qkv(write, x, f"{layer}.self_attention", d), scale)
        x = write.linear(mixed, f"{layer}.self_attention.out", square, bias=True, residual=x)
        normed = write.layer_norm(x, f"{layer}.cross_attention_norm", d, _EPSILON)
        query = write.linear(normed, f"{layer}.cross_attention.query", square, bias=True)
        queries.append(query)
        mixed = write.step("cross_attention", query, *cache_of("cross", i), scale)
        x = write.linear(mixed, f"{layer}.cross_attention.out", square, bias=True, residual=x)
        x = _feed_forward(write, x, layer, d)
    normed = join_rows(write, write.layer_norm(select_asked(write, x), "decoder.norm", d, _EPSILON))
    logits = split_rows(write, write.linear(normed, "decoder.embedding", vocab))
    # One selection for all heads: one per head would slow a step measurably.
    aligned = write.step("cat", [queries[layer] for layer in _aligned_layers(dimensions)], -1)
    aligned = write.step("index_select", aligned, -1, Constant(_ALIGNED_CHANNELS))
    return write.program(**{"logits": logits, ALIGNMENT_QUERIES: aligned})


def _qkv(write: ProgramWriter, x: Node, name: str, d: int) -> list[Node]:
    normed = write.layer_norm(x, f"{name}_norm", d, _EPSILON)
    return write.chunk(write.linear(normed, f"{name}.qkv", (3 * d, d), bias=True), 3)


def _feed_forward(write: ProgramWriter, x: Node, layer: str, d: int) -> Node:
    block = f"{layer}.feed_forward"
    normed = write.layer_norm(x, f"{block}_norm", d, _EPSILON)
    inner = write.linear(normed, f"{block}.up", (4 * d, d), bias=True, activation="gelu")
    return write.linear(inner, f"{block}.down", (d, 4 * d), bias=True, residual=x)


def _aligned_layers(dimensions: WhisperDimensions) -> list[int]:
    return sorted({layer for layer, _ in dimensions.alignment_heads})


def _constants(
    dimensions: WhisperDimensions,
    tensors: Mapping[str, NDArray[np.generic]],  # noqa: ARG001
) -> dict[str, NDArray[np.generic]]:
    """Return the channels of alignment heads in the aligned layers' queries side by side."""
    layers, size = _aligned_layers(dimensions), dimensions.head_dim
    firsts = [
        layers.index(layer) * dimensions.d_model + head * size
        for layer, head in dimensions.alignment_heads
    ]
    channels = [channel for first in firsts for channel in range(first, first + size)]
    return {_ALIGNED_CHANNELS: np.array(channels)}


def _probe(dimensions: WhisperDimensions) -> Probe:
    generator = np.random.default_rng(0)
    frames = 2 * dimensions.source_positions
    features_bmt = generator.uniform(-1, 1, (2, dimensions.n_mels, frames))
    source = (features_bmt.astype(np.float32),)
    if dimensions.vocab_size not in _VOCABULARIES:
        prompts = list(generator.integers(0, dimensions.vocab_size, (2, 4)))
        return Probe(prompts=prompts, source=source)
    # After random tokens a trained model's logits change several times more with rounding.
    prompts = [_usual_prompt(dimensions, row) for row in range(2)]
    return Probe(prompts=prompts, source=source, end=int(prompts[0][0]) - 1)


_VOCABULARIES = (51_864, 51_865, 51_866)  # English, multilingual, large-v3's
_TIMESTAMPS = 1501  # the last tokens, after the one for none


def _usual_prompt(dimensions: WhisperDimensions, row: int) -> NDArray[np.int64]:
    """Return the tokens before an English transcript, or in row 1 a Chinese one."""
    none = dimensions.vocab_size - _TIMESTAMPS - 1
    if not dimensions.is_multilingual:
        return np.array([50_257, none])
    return np.array([50_258, 50_259 + row, none - 4, none])


def _facts(dimensions: WhisperDimensions) -> Mapping[str, Any]:
    return {
        "mel_bins": dimensions.n_mels,
        "mel_frames": 2 * dimensions.source_positions,
        "alignment_layers": [layer for layer, _ in dimensions.alignment_heads],
        "alignment_heads": [head for _, head in dimensions.alignment_heads],
    }


WHISPER = Family(
    name="whisper",
    title="Whisper",
    task="transcribe",
    interface="encoder-decoder",
    dimensions=WhisperDimensions,
    positions=lambda dimensions: dimensions.target_positions,
    caches=self_and_cross_caches,
    programs=_programs,
    writers={"encode": _encode, "decode": _decode},
    constants=_constants,
    precision=PrecisionRoles(int8_cross_cache=True, fused=False),
    probe=_probe,
    model_class="kvcast.whisper.model:WhisperModel",
    usual_prompt=lambda _: 4,  # start of the transcript, language, task and no timestamps
    longest=lambda dimensions, _: {"source": dimensions.source_positions},
    tokenizer="kvcast.whisper.tokenizer:open_tokenizer",
    facts=_facts,
)
