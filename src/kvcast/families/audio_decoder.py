"""Decoder-only models of audio: Qwen3-ASR, both Voxtrals and Granite Speech as data.

An encoder turns audio into embeddings, stored in a slot; token ids from vocab_size on stand for the
embeddings of the row's slot, in order, so that audio may be anywhere in a prompt. Or the embedding
at a token's position is added to the token's. The rest is `kvcast.families.decoder`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.errors import KvcastError
from kvcast.families import decoder
from kvcast.families.audio_encoder import AudioEncoder, WhisperEncoder
from kvcast.families.base import Family, PrecisionRoles, Probe
from kvcast.families.block_conformer import BlockConformer
from kvcast.families.blocks import EMBEDDINGS, TOKENS, gather_embeddings, positions
from kvcast.families.causal_encoder import CausalEncoder
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.programs import (
    CacheLayers,
    ProgramSignature,
    cross_argument,
    decode_program,
    embeddings_cache,
    encode_program,
)
from kvcast.spec.program import Node, Program, ProgramWriter

_PROBED = 70  # frames of a proof's audio: no whole chunk
_EMBEDDINGS = 8  # of its embeddings, at most

ENCODERS: Mapping[str, type[AudioEncoder]] = {
    "granite_speech": BlockConformer,
    "qwen3_asr": WhisperEncoder,
    "voxtral": WhisperEncoder,
    "voxtral_realtime": CausalEncoder,
}
"""By the dimensions' architecture."""


@dataclass(frozen=True, kw_only=True)
class AudioDecoderDimensions(DecoderDimensions):
    """A decoder's dimensions, and its encoder's."""

    audio: AudioEncoder  # the encoder, whose embeddings are as wide as the decoder's hidden states

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
            raise KvcastError(f"not the dimensions of an audio decoder: {error}") from None
        return super().from_json({**fields, "audio": audio})


def _embeddings(dimensions: AudioDecoderDimensions) -> CacheLayers:
    return embeddings_cache(dimensions.audio.positions, dimensions.width)


def _caches(dimensions: AudioDecoderDimensions) -> tuple[CacheLayers, ...]:
    return (*decoder.caches(dimensions), _embeddings(dimensions))


def _programs(dimensions: AudioDecoderDimensions) -> Mapping[str, ProgramSignature]:
    audio, embeddings = dimensions.audio, _embeddings(dimensions)
    read = cross_argument(embeddings, audio.positions if audio.frames else "source")
    return {
        "encode": encode_program(embeddings, *audio.arguments()),
        "decode": decode_program(decoder.caches(dimensions), ["logits"], read),
    }


def _encode(write: ProgramWriter, dimensions: AudioDecoderDimensions) -> Program:
    return write.program(**{EMBEDDINGS.name: dimensions.audio.write_encoder(write)})


def _decode(write: ProgramWriter, dimensions: AudioDecoderDimensions) -> Program:
    x = _beside(write, dimensions) if dimensions.audio.beside else _among(write, dimensions)
    return decoder.write_decoder(write, x, dimensions)


def _among(write: ProgramWriter, dimensions: AudioDecoderDimensions) -> Node:
    vocab = dimensions.vocab_size
    words = write.step("clamp", TOKENS, 0, vocab - 1)
    text = decoder.embed_tokens(write, words, dimensions)
    places = write.step("clamp", write.step("sub", TOKENS, vocab), 0, dimensions.audio.positions)
    is_text = write.step("unsqueeze", write.step("lt", TOKENS, vocab), -1)
    return write.step("where", is_text, text, gather_embeddings(write, places))


def _beside(write: ProgramWriter, dimensions: AudioDecoderDimensions) -> Node:
    """Past the end of the audio the first embedding, of silence, is added."""
    places = positions(write)
    is_there = write.step("lt", places, write.size(EMBEDDINGS, 2))
    places = write.step("where", is_there, places, 0)
    text = decoder.embed_tokens(write, TOKENS, dimensions)
    return write.step("add", text, gather_embeddings(write, places))


def _constants(
    dimensions: AudioDecoderDimensions, tensors: Mapping[str, NDArray[np.generic]]
) -> dict[str, NDArray[np.generic]]:
    return {
        **decoder.constants(dimensions, tensors),
        **dimensions.audio.constants(),
    }


def _probe(dimensions: AudioDecoderDimensions) -> Probe:
    generator, audio, vocab = np.random.default_rng(0), dimensions.audio, dimensions.vocab_size
    frames = audio.frames or _PROBED
    features_btm = generator.uniform(-1, 1, (2, frames, audio.n_mels)).astype(np.float32)
    count = min(_EMBEDDINGS, audio.embedding_count(frames))
    texts = generator.integers(0, vocab, (2, 2))
    places = np.zeros(count, np.int64) if audio.beside else np.arange(vocab, vocab + count)
    return Probe(
        prompts=[np.concatenate([text[:1], places, text[1:]]) for text in texts],
        source=audio.source(features_btm),
        alone=[audio.source(part_tm[None]) for part_tm in features_btm],
    )


def _longest(dimensions: AudioDecoderDimensions, _: int) -> Mapping[str, int]:
    audio = dimensions.audio
    given = audio.source(np.zeros((1, audio.most_frames, audio.n_mels), np.float32))
    return {"source": audio.positions} | {
        name: size
        for argument, part in zip(audio.arguments(), given, strict=True)
        for name, size in zip(argument.shape, part.shape, strict=True)
        if isinstance(name, str)
    }


AUDIO_DECODER = Family(
    name="audio_decoder",
    title="an audio decoder",
    task="transcribe",
    interface="encoder-decoder",
    dimensions=AudioDecoderDimensions,
    positions=lambda dimensions: dimensions.max_positions,
    caches=_caches,
    programs=_programs,
    writers={"encode": _encode, "decode": _decode},
    constants=_constants,
    precision=PrecisionRoles(outliers=("gate",)),
    probe=_probe,
    model_class="kvcast.speech.audio_decoder:AudioDecoderModel",
    usual_prompt=lambda dimensions: dimensions.audio.positions + 20,
    longest=_longest,
    rotary=lambda dimensions: bool(dimensions.rotary_kinds),
)
