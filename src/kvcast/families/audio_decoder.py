"""Decoder-only models that hear: Qwen3-ASR, Voxtral and Granite Speech as data.

An encoder turns sound into embeddings, which lie in a slot; token numbers from the vocabulary's
size on stand for those of the row's own slot, in order. So a prompt has sound where it wants it,
and everything behind the embedding is `kvcast.families.decoder`'s. Knows no file format, weights,
text or runtimes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.families import decoder, decoder_shapes
from kvcast.families.audio_encoder import AudioEncoder
from kvcast.families.base import Family, PrecisionRoles, Probe
from kvcast.families.block_conformer import BlockConformer
from kvcast.families.blocks import TOKENS, written
from kvcast.families.caches import CacheLayers
from kvcast.families.decoder import EMBEDDING
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.programs import (
    ProgramSignature,
    cross_argument,
    decode_program,
    encode_program,
)
from kvcast.families.sound_encoder import SoundEncoder
from kvcast.spec.program import Node, Program
from kvcast.spec.writer import ProgramWriter

_PROBED = 70  # frames of a proof's sound: no whole chunk
_HEARD = 8  # of its embeddings, at most
_EMBEDDINGS = "cross_embeddings_0"

ENCODERS: Mapping[str, type[SoundEncoder]] = {
    "granite_speech": BlockConformer,
    "qwen3_asr": AudioEncoder,
    "voxtral": AudioEncoder,
}
"""By the dimensions' architecture."""


@dataclass(frozen=True, kw_only=True)
class AudioDecoderDimensions(DecoderDimensions):
    """A decoder's dimensions, and its encoder's.

    Attributes:
        audio: the encoder, whose embeddings are as wide as the decoder's hidden states.

    """

    audio: SoundEncoder

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.audio.output != self.width:
            raise KvcastError(
                f"an encoder of embeddings of {self.audio.output} numbers does not fit a decoder "
                f"of width {self.width}"
            )

    @classmethod
    @override
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        try:
            audio = ENCODERS[fields["architecture"]].from_json(fields["audio"])
        except (TypeError, KeyError) as error:
            raise KvcastError(f"not the dimensions of a decoder that hears: {error}") from None
        return super().from_json({**fields, "audio": audio})


def tensor_shapes(dimensions: AudioDecoderDimensions) -> dict[str, tuple[int, ...]]:
    """Return every canonical name with its shape."""
    return {
        **dimensions.audio.shapes(),
        **decoder_shapes.tensor_shapes(dimensions),
    }


def _embeddings(dimensions: AudioDecoderDimensions) -> CacheLayers:
    return CacheLayers(
        kind="embeddings",
        layers=1,
        heads=1,
        head_dim=dimensions.width,
        capacity=dimensions.audio.positions,
    )


def _caches(dimensions: AudioDecoderDimensions) -> tuple[CacheLayers, ...]:
    return (*decoder.caches(dimensions), _embeddings(dimensions))


def _programs(dimensions: AudioDecoderDimensions) -> Mapping[str, ProgramSignature]:
    audio, embeddings = dimensions.audio, _embeddings(dimensions)
    read = cross_argument(embeddings, audio.positions if audio.frames else "source")
    return {
        "encode": encode_program(embeddings, *audio.arguments()),
        "decode": decode_program(decoder.caches(dimensions), ["logits"], read),
    }


def _written(dimensions: AudioDecoderDimensions) -> Mapping[str, Program]:
    return written(_programs(dimensions), dimensions, encode=_encode, decode=_decode)


def _encode(write: ProgramWriter, dimensions: AudioDecoderDimensions) -> Program:
    return write.program(**{_EMBEDDINGS: dimensions.audio.written(write)})


def _decode(write: ProgramWriter, dimensions: AudioDecoderDimensions) -> Program:
    """Write `decode`: new tokens, some of which are embeddings of sound, to logits."""
    vocab, sound = dimensions.vocab_size, Node(_EMBEDDINGS)
    text = write.embedding(EMBEDDING, write.step("clamp", TOKENS, 0, vocab - 1))
    slots, count = write.size(sound, 0), write.size(sound, 2)
    # Neighbouring rows read one slot, so they are one row of all its new tokens.
    by_slot = write.step("view", TOKENS, [slots, -1])
    place = write.step("clamp", write.step("sub", by_slot, vocab), 0, dimensions.audio.positions)
    first = write.step("mul", write.step("arange", slots, dtype="int64"), count)
    index = write.step("add", place, write.step("unsqueeze", first, 1))
    rows = write.step(
        "index_select", write.step("flatten", sound, 0, 2), 0, write.step("flatten", index)
    )
    sizes = [write.size(TOKENS, 0), write.size(TOKENS, 1), dimensions.width]
    heard = write.step("view", rows, sizes)
    is_text = write.step("unsqueeze", write.step("lt", TOKENS, vocab), -1)
    return decoder.decoded(write, write.step("where", is_text, text, heard), dimensions)


def _constants(
    dimensions: AudioDecoderDimensions, tensors: Mapping[str, NDArray[np.generic]]
) -> dict[str, NDArray[np.generic]]:
    return {
        **decoder.constants(dimensions, tensors),
        **dimensions.audio.constants(),
    }


def _probe(dimensions: AudioDecoderDimensions) -> Probe:
    """Return two inputs of noise, each between two tokens of text."""
    generator, audio, vocab = np.random.default_rng(0), dimensions.audio, dimensions.vocab_size
    frames = audio.frames or _PROBED
    features_btm = generator.uniform(-1, 1, (2, frames, audio.n_mels)).astype(np.float32)
    texts = generator.integers(0, vocab, (2, 2))
    sound = np.arange(vocab, vocab + min(_HEARD, audio.encoded(frames)))
    return Probe(
        prompts=[np.concatenate([text[:1], sound, text[1:]]) for text in texts],
        source=audio.source(features_btm),
        alone=[audio.source(part_tm[None]) for part_tm in features_btm],
    )


AUDIO_DECODER = Family(
    name="audio_decoder",
    title="a decoder that hears",
    task="transcribe",
    interface="encoder-decoder",
    dimensions=AudioDecoderDimensions,
    positions=lambda dimensions: dimensions.max_positions,
    caches=_caches,
    programs=_programs,
    written=_written,
    constants=_constants,
    tensor_shapes=tensor_shapes,
    precision=PrecisionRoles(outliers=("gate",)),
    probe=_probe,
    model_class="kvcast.speech.audio_decoder:AudioDecoderModel",
    work_class="kvcast.inspect.work.audio_decoder:AudioDecoderWork",
    rotary=decoder.is_rotary,
)
