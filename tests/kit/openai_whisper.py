"""openai-whisper as an oracle: its tokenizers, its decoding and its attention, with our weights.

Its tokenizers are also rewritten as tokenizer.json files.
"""

import importlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from whisper.model import ModelDimensions, disable_sdpa
from whisper.tokenizer import Tokenizer, get_tokenizer

import whisper
from kit.models import tensors_of
from kvcast.checkpoints.base import Checkpoint
from kvcast.families.whisper import WhisperDimensions
from kvcast.models.executor import TorchModel
from kvcast.runtimes.base import Float32, Int64
from kvcast.transcripts.segments import Word
from kvcast.whisper.tokenizer import WhisperTokenizer
from kvcast.whisper.word_timestamps import WINDOW_FRAMES, Span, within
from kvcast_bench.writing.ggml import openai_sizes, openai_tensors


@dataclass(frozen=True)
class Pair:
    """kvcast's tokenizer and openai-whisper's of one vocabulary."""

    ours: WhisperTokenizer
    theirs: Tokenizer
    num_languages: int


@cache
def openai_tokenizer(multilingual: bool, **options: Any) -> Tokenizer:
    """`get_tokenizer`, which leaves a file open when it first reads a vocabulary."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        return get_tokenizer(multilingual, **options)


@cache
def openai_tokenizer_json(multilingual: bool, num_languages: int = 99) -> bytes:
    """Write one of openai-whisper's vocabularies, which has ranks, as one with merges."""
    encoding = openai_tokenizer(multilingual, num_languages=num_languages).encoding
    ranks = encoding._mergeable_ranks
    specials = encoding._special_tokens
    merges = [_halves(token, rank, ranks) for token, rank in ranks.items() if len(token) > 1]
    return json.dumps(
        {
            "added_tokens": [{"id": i, "content": name} for name, i in specials.items()],
            "model": {
                "type": "BPE",
                "vocab": {_printable(token): rank for token, rank in ranks.items()},
                "merges": [[_printable(left), _printable(right)] for left, right in merges],
            },
        }
    ).encode()


def _halves(token: bytes, rank: int, ranks: dict[bytes, int]) -> list[bytes]:
    """Merge the bytes of a token by all lower ranks, which leaves the pair that its rank joins."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        joined = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
        first = joined.index(min(joined))
        parts[first : first + 2] = [parts[first] + parts[first + 1]]
    return parts


def _printable(token: bytes) -> str:
    """Spell bytes as GPT-2's files do: unprintable ones are mapped to U+0100 and up."""
    return "".join(_STAND_INS[byte] for byte in token)


_PRINTS = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTS]
_STAND_INS = [chr(byte if byte in _PRINTS else 0x100 + _HIDDEN.index(byte)) for byte in range(256)]


class Oracle:
    """One model; asked twice the same, it remembers."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._model = openai_model(checkpoint.dimensions, checkpoint.tensors)
        openai_tokenizer(self._model.is_multilingual)
        self._transcripts: dict[str, dict[str, Any]] = {}

    def transcribe(self, name: str, samples: np.ndarray, **options: Any) -> dict[str, Any]:
        """Transcribe named samples; options are kvcast's, without fallback.

        Segments that openai-whisper emptied, or hallucinated in windows of zeros, which kvcast does
        not yield, are left out. Times end with the audio.
        """
        key = repr((name, sorted(options.items())))
        if key not in self._transcripts:
            theirs = renamed_options(options)
            transcript = self._model.transcribe(
                torch.from_numpy(samples), fp16=False, verbose=None, **theirs
            )
            spoken = [s for s in transcript["segments"] if not _is_silent(samples, s["seek"])]
            transcript["segments"] = ending_with_audio(
                spoken, len(samples) // 160, theirs["clip_timestamps"]
            )
            self._transcripts[key] = transcript
        return self._transcripts[key]


def _is_silent(samples: np.ndarray, seek: int) -> bool:
    return not samples[160 * seek : 160 * (seek + 3000)].any()


def renamed_options(options: Mapping[str, Any]) -> dict[str, Any]:
    theirs = dict(options)
    beam = theirs.pop("beam", 1)
    start, end = theirs.pop("clip_start", 0.0), theirs.pop("clip_end", None)
    theirs["beam_size"] = None if beam == 1 else beam
    theirs.setdefault("clip_timestamps", [start] if end is None else [start, end])
    theirs["without_timestamps"] = not theirs.pop("timestamps", True)
    theirs["sample_len"] = theirs.pop("max_new_tokens", None)
    return theirs


def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run its alignment without Numba's compiler, which is slow and warns."""
    timing = importlib.import_module("whisper.timing")
    for name in ("dtw_cpu", "backtrace"):
        monkeypatch.setattr(timing, name, getattr(timing, name).py_func)


def is_ordered(segments: list[dict[str, Any]]) -> bool:
    """Return whether words follow each other within their segments."""
    times = [t for s in segments for w in s["words"] for t in (w["start"], w["end"])]
    return times == sorted(times) and all(
        s["start"] <= s["words"][0]["start"] and s["words"][-1]["end"] <= s["end"]
        for s in segments
        if s["words"]
    )


def openai_model(
    dimensions: WhisperDimensions, tensors: Mapping[str, np.ndarray]
) -> whisper.Whisper:
    model = whisper.Whisper(ModelDimensions(**openai_sizes(dimensions)))
    state = {
        name: torch.from_numpy(np.array(tensor, np.float32))
        for name, tensor in openai_tensors(tensors)
    }
    model.load_state_dict(state)
    heads = torch.zeros(dimensions.decoder_layers, dimensions.decoder_heads, dtype=torch.bool)
    for layer, head in dimensions.alignment_heads:
        heads[layer, head] = True
    model.register_buffer("alignment_heads", heads.to_sparse(), persistent=False)
    return model.eval()


def openai_attention(
    programs: TorchModel, features_mt: Float32, tokens_s: Int64
) -> tuple[Float32, Float32]:
    """Scores [heads, s, t] of the alignment heads, and logits [s, vocab].

    openai-whisper has no biases of keys. They add the same to all scores of a query, so the model's
    results are the same without, and scores are to be compared as `centred`.
    """
    dimensions = programs.dimensions
    model = openai_model(dimensions, _without_key_biases(programs))
    products: dict[int, Float32] = {}

    def keep(layer: int) -> Any:
        # As `find_alignment` in openai-whisper's timing.py.
        return lambda _module, _given, results: products.update({layer: results[-1][0].numpy()})

    for i, block in enumerate(model.decoder.blocks):
        block.cross_attn.register_forward_hook(keep(i))
    with torch.no_grad(), disable_sdpa():
        logits = model(torch.from_numpy(features_mt)[None], torch.from_numpy(tokens_s)[None])
    scores = np.stack([products[layer][head] for layer, head in dimensions.alignment_heads])
    return scores, logits[0].numpy()


def centred(scores_hst: Float32) -> Float32:
    """Scores without the mean of each query, which softmax ignores."""
    return scores_hst - scores_hst.mean(axis=-1, keepdims=True)


def _without_key_biases(programs: TorchModel) -> dict[str, NDArray[Any]]:
    tensors = {name: tensor.copy() for name, tensor in tensors_of(programs).items()}
    width = programs.dimensions.d_model
    for name, tensor in tensors.items():
        if name.endswith("attention.qkv.bias"):
            tensor[width : 2 * width] = 0
        if name.endswith("key_value.bias"):
            tensor[:width] = 0
    return tensors


def ending_with_audio(
    segments: Sequence[dict[str, Any]], content_frames: int, clips: Sequence[float] = (0.0,)
) -> list[dict[str, Any]]:
    """Segments with text, of clips as `clip_timestamps` has them."""
    frames = [round(100 * bound) for bound in clips]
    frames += [content_frames] * (len(frames) % 2)
    bounds = list(pairwise(frames))[::2]
    ending = []
    for seek, window in groupby(segments, itemgetter("seek")):
        last = next((end for first, end in bounds if first <= seek < end), content_frames)
        end = min(seek + WINDOW_FRAMES, last, content_frames) / 100
        spoken = [segment for segment in window if segment["text"]]
        spans = within([_span(segment) for segment in spoken], end)
        for segment, span in zip(spoken, spans, strict=True):
            times = {"start": span.start, "end": span.end}
            words = [vars(word) for word in span.words or ()]
            ending.append(segment | times | ({"words": words} if "words" in segment else {}))
    return ending


def _span(segment: dict[str, Any]) -> Span:
    words = tuple(Word(**word) for word in segment.get("words", ()))
    return Span(segment["start"], segment["end"], tuple(segment["tokens"]), words)
