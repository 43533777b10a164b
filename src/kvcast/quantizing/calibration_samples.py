"""Evaluation sequences, with their encoder inputs, on which precisions are compared.

For a decoder-only model, text is used directly. Otherwise sequences are the output of the fp32
model for a recording or a line, recorded while its runtime computes it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import InputMissingError, InputOutputError, UsageError
from kvcast.families.base import Family
from kvcast.runtimes.base import Int64, Tokens

LONGEST = 512
"""Most tokens of a sequence from a given text."""
_NEW_TOKENS = 128  # of an answer to a line
_RECORDED = ("encode", "reset", "prefill", "decode")


@dataclass(frozen=True, kw_only=True, eq=False)
class CalibrationSample:
    source: tuple[NDArray[Any], ...] = ()  # inputs of `encode`, each [1, ...], if any
    prompt: Int64  # tokens [s], s >= 1; logits are compared after the last one
    target: Int64  # tokens [t] that follow; logits are compared after each

    @property
    def positions(self) -> int:
        return 1 + len(self.target)

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.target)


def calibration_samples(
    model: Any, family: Family, on: str, positions: int, language: str | None = None
) -> list[CalibrationSample]:
    """Sequences of `positions` (1 or more) positions in total, or fewer if the input is short.

    `model`: in fp32; `on`: path of a recording or a text. Raises InputMissingError or
    InputOutputError if it cannot be read, UsageError if it is empty or the language not supported.
    """
    if family.task == "transcribe":
        with model.transcribe(on, temperature=0.0, language=language) as segments:
            samples = _generate(model, segments, positions)
    elif language is not None:
        raise UsageError("language is of a recording, and this model reads texts")
    elif family.interface == "decoder-only":
        samples = _split_text(
            model.encoded(_text(on)).tokens, positions, model.dimensions.max_positions
        )
    else:
        lines = [line for line in _text(on).splitlines() if line.strip()]
        options = {"max_new_tokens": _NEW_TOKENS, "temperature": 0.0, "beam": 1, "n": 1}
        texts = chain.from_iterable(model.generate_each([line], **options) for line in lines)
        samples = _generate(model, texts, positions)
    if not samples:
        raise UsageError(f"{on} gives the model nothing to write: give more speech, or more text")
    return samples


def _text(path: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        raise InputMissingError(f"{path}: there is no such file") from None
    except OSError as error:
        raise InputOutputError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputOutputError(f"{path} is no text: it is not valid UTF-8") from None


def _split_text(tokens_s: Int64, positions: int, most: int) -> list[CalibrationSample]:
    tokens_s, each = tokens_s[:positions], min(LONGEST, most)
    pieces = [tokens_s[i : i + each] for i in range(0, len(tokens_s), each)]
    return [
        CalibrationSample(prompt=piece[:1], target=piece[1:]) for piece in pieces if len(piece) > 1
    ]


def _generate(model: Any, results: Any, positions: int) -> list[CalibrationSample]:
    """Decode until enough tokens were fed."""
    with _recording(model.runtime) as recorder:
        for _ in results:
            if recorder.positions >= positions:
                break
    return list(_limit(recorder.samples(), positions))


def _limit(samples: Sequence[CalibrationSample], positions: int) -> Iterator[CalibrationSample]:
    left = positions
    for sample in samples:
        if left > 0:
            yield replace(sample, target=sample.target[: left - 1])
        left -= sample.positions


def _with(sample: CalibrationSample, part: str, tokens_s: Int64) -> CalibrationSample:
    return replace(sample, **{part: tokens_s})  # type: ignore[arg-type]


@dataclass
class _CallRecorder:
    """Records the tokens that a runtime was fed with, by row; resetting a row begins a sequence.

    Prompts without a token after them are left out: they detect a language.
    """

    sources: dict[int, tuple[NDArray[Any], ...]] = field(default_factory=dict)
    rows: dict[int, CalibrationSample] = field(default_factory=dict)
    done: list[CalibrationSample] = field(default_factory=list)

    @property
    def positions(self) -> int:
        return sum(sample.positions for sample in self.samples())

    def samples(self) -> list[CalibrationSample]:
        return [each for each in (*self.done, *self.rows.values()) if len(each.target)]

    def encode(self, _: Any, slots: Sequence[int], *source: NDArray[Any]) -> None:
        for i, slot in enumerate(slots):
            self.sources[slot] = tuple(part[i : i + 1].copy() for part in source)

    def reset(self, _: Any, rows: Sequence[int], inputs: Sequence[int] | None = None) -> None:
        for row in rows:
            if row in self.rows:
                self.done.append(self.rows.pop(row))
        nothing = np.empty(0, np.int64)
        for row, slot in zip(rows, inputs or (), strict=False):
            self.rows[row] = CalibrationSample(
                source=self.sources[slot], prompt=nothing, target=nothing
            )

    def prefill(
        self, tokens: Tokens, cache: Any, rows: Sequence[int] | None = None, *_: Any, **__: Any
    ) -> None:
        self._feed("prompt", tokens, cache, rows)

    def decode(
        self, tokens: Tokens, cache: Any, rows: Sequence[int] | None = None, *_: Any, **__: Any
    ) -> None:
        self._feed("target", tokens, cache, rows)

    def _feed(self, part: str, tokens: Tokens, cache: Any, rows: Sequence[int] | None) -> None:
        nothing = np.empty(0, np.int64)
        for row, new in zip(range(len(cache.lengths)) if rows is None else rows, tokens):  # noqa: B905
            held = self.rows.get(row, CalibrationSample(prompt=nothing, target=nothing))
            fed = np.concatenate([getattr(held, part), new])
            self.rows[row] = _with(held, part, fed)


@contextmanager
def _recording(runtime: Any) -> Iterator[_CallRecorder]:
    recorder = _CallRecorder()
    for name in _RECORDED:
        if (method := getattr(runtime, name, None)) is not None:
            setattr(runtime, name, _record_calls(getattr(recorder, name), method))
    try:
        yield recorder
    finally:
        for name in _RECORDED:
            vars(runtime).pop(name, None)


def _record_calls(record: Any, method: Any) -> Any:
    def call(*given: Any, **keywords: Any) -> Any:
        record(*given, **keywords)
        return method(*given, **keywords)

    return call
