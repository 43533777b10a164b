"""Computes the shown attention weights of an audio or a text."""

from collections.abc import Sequence
from math import ceil

import numpy as np

from kvcast.audio.decode import SAMPLE_RATE
from kvcast.errors import KvcastError, UsageError
from kvcast.inspect.attention.model import FedSequence, InspectedModel
from kvcast.inspect.attention.view import AttentionView, HeadChoice, Over, Token, mean_weights
from kvcast.inspect.schedule import MOST_POSITIONS
from kvcast.runtimes.base import Float32, Int64

_WINDOW = 30.0
"""Seconds that a sound of any length is padded to, by models that do so."""
_ANSWER = 64
"""New tokens that answer a source, at most, unless another number is given."""


def seconds_heard(model: InspectedModel) -> float:
    """Return how many seconds of audio a model encodes at once."""
    frames = model.facts.get("mel_frames") or model.model.recognition.longest
    return float(frames) / 100


def over_sound(
    model: InspectedModel,
    samples: Float32,
    language: str | None,
    layer: int | None,
    head: int | None,
) -> AttentionView:
    """Return the attention of each token of a transcript to the audio, when generated.

    Args:
        model: transcribes.
        samples: mono at 16 kHz, at most what the model encodes at once.
        language: language code; None to detect it.
        layer: shows this one alone.
        head: shows this one alone, of that layer or of each.

    Raises:
        UsageError: there is no such layer, head or language.
        KvcastError: no speech was recognized.

    """
    sequence = model.heard(samples, language)
    tokens_s = sequence.tokens_s
    # Decoder-only models read the audio embeddings as token ids beyond the vocabulary.
    heard = tokens_s >= model.reader.checkpoint.dimensions.vocab_size
    columns = np.flatnonzero(heard) if heard.any() else None
    view = _view(model, sequence, "sound", layer, head, columns)
    positions = view.weights_st.shape[1]
    seconds = len(samples) / SAMPLE_RATE
    each = _padded_to(model, samples, positions, seconds) / positions
    shown = min(positions, ceil(seconds / each))
    return view.of_sound(each, shown)


def over_text(
    model: InspectedModel, text: str, new: int | None, layer: int | None, head: int | None
) -> AttentionView:
    """Return the attention of each token: of a text to itself, of an answer to its source.

    Args:
        model: reads text.
        text: continued by `new` tokens, 0 by default; or answered by `new`, 64 by default.
        new: maximum tokens to generate.
        layer: as for audio.
        head: likewise.

    Raises:
        UsageError: as for audio; or the text is too long or empty.

    """
    answers = model.kind == "cross"
    sequence = model.read(text, new if new is not None else _ANSWER if answers else 0)
    return _view(model, sequence, "source" if answers else "text", layer, head, None)


def _view(
    model: InspectedModel,
    sequence: FedSequence,
    over: Over,
    layer: int | None,
    head: int | None,
    columns: Int64 | None,
) -> AttentionView:
    rows = range(len(sequence.tokens))
    if over != "text":
        # A token's row is the position that generated it.
        rows = range(sequence.prompt - 1, len(sequence.tokens) - 1)
        if not rows:
            raise KvcastError(f"{model.name} wrote nothing")
    if len(sequence.tokens) > MOST_POSITIONS:
        raise UsageError(
            f"{len(sequence.tokens):,} tokens are too many to show (at most {MOST_POSITIONS:,}): "
            "give a shorter text"
        )
    mean = mean_weights(
        model.reader.layers(sequence, model.kind),
        HeadChoice(layer=layer, head=head, usual=model.alignment_heads if over == "sound" else ()),
    )
    weights_st = mean.weights_st[list(rows)]
    if columns is not None:
        weights_st = weights_st[:, columns]
    shift = 0 if over == "text" else 1
    return AttentionView(
        model=model.name,
        over=over,
        rows=_spelled(model, [sequence.tokens[row + shift] for row in rows]),
        columns=_columns(model, sequence, over, weights_st.shape[1]),
        heads=mean.heads,
        weights_st=weights_st,
        error=mean.error,
    )


def _columns(
    model: InspectedModel, sequence: FedSequence, over: Over, count: int
) -> Sequence[Token]:
    if over == "sound":
        return ()
    read = sequence.tokens if over == "text" else sequence.source[0][0].tolist()
    return _spelled(model, read[:count])


def _spelled(model: InspectedModel, tokens: Sequence[int]) -> list[Token]:
    return [Token(id=token, text=model.spelled(token)) for token in tokens]


def _padded_to(model: InspectedModel, samples: Float32, positions: int, seconds: float) -> float:
    """Return how many seconds the encoder's positions cover: its window's, or the audio's."""
    if "mel_frames" in model.facts:
        return seconds_heard(model)
    half = model.model.recognition.input(samples[: len(samples) // 2])
    return _WINDOW if half.positions == positions else seconds
