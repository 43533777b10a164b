"""Hotwords, prefixes, repetition filters, and stopped texts in a window's result.

openai-whisper's DecodingTask knows a prefix and can be given transformers' filters; the rest is
seen in what a scripted model is asked.
"""

import gc
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import whisper.decoding as openai
from test_window_decoder_equals_openai import (
    VOCAB,
    ScriptedInference,
    ScriptedWhisper,
    openai_features,
    our_tokenizer,
    speech,
)
from transformers import (
    LogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from kit.openai_whisper import openai_tokenizer
from kit.scripted_runtimes import Script, ScriptedRuntime, drain, windows
from kvcast.engine.callers import PolicyList
from kvcast.errors import KvcastError
from kvcast.whisper.decoding import DecodingOptions, DecodingResult
from kvcast.whisper.requests import Features
from kvcast.whisper.windows import WindowDecoder

pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")

ENGLISH = our_tokenizer(False)
BEGIN = ENGLISH.timestamp_begin
NEVER_ENDS = {"suppress_tokens": "50256"}


@pytest.fixture(autouse=True)
def _scripted_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    openai_tokenizer(False)
    monkeypatch.setattr(openai, "PyTorchInference", ScriptedInference)


def decoded(
    script: Script, *, prompt: Sequence[int] = (), multilingual: bool = False, **options: Any
) -> DecodingResult:
    asked = DecodingOptions(**options)
    decoder = window_decoder(script, multilingual, rows=asked.strategy().width)
    [result] = decoder.decode(windows(1), asked, prompt=prompt)
    return result


def window_decoder(script: Script, multilingual: bool = True, **sizes: int) -> WindowDecoder:
    return WindowDecoder(ScriptedRuntime(script), our_tokenizer(multilingual), 448, **sizes)


def likeliest_language(decoder: WindowDecoder, window: Features) -> str:
    [probabilities] = decoder.detect_languages([window])
    return max(probabilities, key=probabilities.__getitem__)


def constant(logits: dict[int, float], *, multilingual: bool = False, fill: float = 0) -> Script:
    """The same logits at each step: some tokens', and `fill` for the others."""
    logits_v = np.full(VOCAB[multilingual], fill, np.float32)
    for token, logit in logits.items():
        logits_v[token] = logit
    return lambda *_: logits_v


def openai_decoded(
    script: Script, processors: Sequence[LogitsProcessor] = (), **options: Any
) -> openai.DecodingResult:
    task = openai.DecodingTask(
        ScriptedWhisper(False, script, 448),
        openai.DecodingOptions(fp16=False, language="en", **options),
    )
    first = task.sample_begin

    class Filter(openai.LogitFilter):
        def __init__(self, processor: LogitsProcessor) -> None:
            self.processor = processor

        def apply(self, logits: torch.Tensor, tokens: torch.Tensor) -> None:
            logits[:] = self.processor(tokens[:, first:], logits.clone())

    task.logit_filters = [*map(Filter, processors), *task.logit_filters]
    [result] = task.run(openai_features(1))
    return result


FEW = 6


def loop_script(period: int, *, prompt: int = 1, end: float = -9) -> Script:
    """A model that repeats the same words, with a little chance of others."""

    @cache
    def logits(_: int, written: tuple[int, ...]) -> np.ndarray:
        logits_v = np.random.default_rng((5, *written[-3:])).normal(0, 0.5, VOCAB[False])
        logits_v[ENGLISH.eot] = end
        logits_v[1000 + (len(written) - prompt) % period] += 12
        return logits_v.astype(np.float32)

    return logits


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_repetition_filters_come_first_and_see_generated_tokens(seed: int, beam: int):
    """Scripts that repeat themselves, so that the filters have something to do."""
    speaks = speech(False, seed)

    @cache
    def script(number: int, written: tuple[int, ...]) -> np.ndarray:
        return speaks(number, (*written[:2], len(written) % FEW))

    theirs = openai_decoded(
        script,
        [RepetitionPenaltyLogitsProcessor(1.2), NoRepeatNGramLogitsProcessor(2)],
        sample_len=40,
        beam_size=None if beam == 1 else beam,
        **NEVER_ENDS,
    )
    options = {"beam": beam, "max_new_tokens": 40, **NEVER_ENDS}
    ours = decoded(script, repetition_penalty=1.2, no_repeat_ngram=2, **options)
    assert list(ours.tokens) == theirs.tokens
    assert ours.avg_logprob == pytest.approx(theirs.avg_logprob, abs=1e-4)
    assert decoded(script, stop_repetition=False, **options).tokens != ours.tokens


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_text_after_a_prefix_is_openais(seed: int, beam: int):
    script = speech(False, seed)
    prefix = tuple(ENGLISH.encode(" Elinor, then"))
    given = {"prompt": [50, 51], "prefix": "Elinor, then ", **NEVER_ENDS}
    ours = decoded(script, beam=beam, timestamps=False, max_new_tokens=9, **given)
    theirs = openai_decoded(
        script,
        beam_size=None if beam == 1 else beam,
        without_timestamps=True,
        suppress_blank=False,  # the prefix counts as generated, and may be all that is said
        sample_len=9,
        **given,
    )
    assert ours.tokens == (*prefix, *theirs.tokens)
    assert ours.text.startswith("Elinor, then")
    assert ours.avg_logprob == pytest.approx(theirs.avg_logprob, abs=1e-5)
    assert ours.no_speech_prob == pytest.approx(theirs.no_speech_prob, abs=1e-5)


def test_with_timestamps_a_prefix_begins_at_zero():
    prefix = ENGLISH.encode(" Elinor")
    script = loop_script(12)
    result = decoded(script, prefix="Elinor", max_new_tokens=5)
    assert result.tokens[: 1 + len(prefix)] == (BEGIN, *prefix)
    assert len(result.tokens) == 1 + len(prefix) + 5
    assert all(token < ENGLISH.eot for token in result.tokens[1:])
    assert ENGLISH.sot not in result.tokens


@pytest.mark.parametrize(
    ("filters", "repeats"),
    [({}, True), ({"repetition_penalty": 2.0}, False), ({"no_repeat_ngram": 1}, False)],
)
def test_filters_see_the_prefix(filters: dict[str, Any], repeats: bool):
    word = ENGLISH.encode(" Elinor")[-1]
    script = constant({word: 5, 77: 4})
    result = decoded(script, prefix="Elinor", timestamps=False, max_new_tokens=1, **filters)
    assert result.tokens[-1] == (word if repeats else 77)


SEARCHES: list[dict[str, Any]] = [{}, {"beam": 3}, {"temperature": 0.3, "best_of": 3}]


@pytest.mark.parametrize("search", SEARCHES, ids=str)
@pytest.mark.parametrize("period", [1, 2, 7, 20])
def test_a_text_that_only_repeats_itself_is_stopped(period: int, search: dict[str, Any]):
    steps = 0
    script = loop_script(period)

    def counted(number: int, written: tuple[int, ...]) -> np.ndarray:
        nonlocal steps
        steps = max(steps, len(written))
        return script(number, written)

    result = decoded(counted, timestamps=False, **search)
    assert steps <= 2 + max(48, 4 * period) + 8
    assert len(result.tokens) == period
    assert result.repetition is not None
    assert result.repetition.startswith('repeats "')
    assert result.repetition.endswith(" times")
    assert not result.complete
    assert result.text == ENGLISH.decode(result.tokens).strip()
    assert result.compression_ratio > 2.4  # of all that was written


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_stop_repetition_can_be_switched_off(search: dict[str, Any]):
    result = decoded(loop_script(3), timestamps=False, stop_repetition=False, **search)
    assert len(result.tokens) == 224
    assert result.repetition is None


def test_finished_segments_before_a_repetition_are_kept():
    spoken = (BEGIN, 50, 51, BEGIN + 100, BEGIN + 100)
    script = loop_script(3)

    def speaks(number: int, written: tuple[int, ...]) -> np.ndarray:
        said = len(written) - 1
        if said >= len(spoken):
            return script(number, written)
        return constant({spoken[said]: 30})()

    result = decoded(speaks)
    assert result.tokens == spoken
    assert result.repetition is not None
    assert not result.complete


@pytest.mark.parametrize("seed", range(4))
def test_other_texts_are_as_without_the_check(seed: int):
    script = speech(False, seed)
    for search in SEARCHES:
        checked = decoded(script, **search)
        assert checked == decoded(script, stop_repetition=False, **search)


def test_without_a_language_each_window_is_decoded_in_its_own():
    script, several = speech(True, 2), windows(*range(6))
    decoder = window_decoder(script, rows=2, windows=2)
    results = decoder.decode(several, DecodingOptions(max_new_tokens=3))
    alone = window_decoder(script)
    for window, result in zip(several, results, strict=True):
        options = DecodingOptions(max_new_tokens=3, language=likeliest_language(alone, window))
        assert alone.decode([window], options) == [result]
    assert len({result.language for result in results}) > 1


@pytest.mark.parametrize(("of_prompt", "read"), [(None, True), ("haw", False), ("its own", True)])
def test_a_prompt_in_another_language_is_not_read(of_prompt: str | None, read: bool):
    script, seen = speech(True, 2), []

    def watched(number: int, written: tuple[int, ...]) -> np.ndarray:
        seen.append(written)
        return script(number, written)

    decoder = window_decoder(watched)
    [window] = windows(1)
    own = likeliest_language(decoder, window)
    assert own != "haw"
    language = own if of_prompt == "its own" else of_prompt
    asked = {"prompt": (50, 51), "prompt_language": language}
    decoder.answer(decoder.requests.decode(window, DecodingOptions(max_new_tokens=1), **asked))
    assert ((our_tokenizer(True).sot_prev, 50, 51) == seen[-1][:3]) == read


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_window_can_be_cancelled_during_and_after_language_detection(steps: int):
    decoder = window_decoder(speech(True, 2), rows=2)
    first, second = (
        PolicyList([decoder.requests.decode(window, DecodingOptions(max_new_tokens=3))])
        for window in windows(1, 2)
    )
    decoder.scheduler.add(first)
    decoder.scheduler.add(second)
    for _ in range(steps):
        decoder.scheduler.step()
    assert not first.over
    decoder.scheduler.remove(first)
    drain(decoder.scheduler)
    assert not first.results
    [result] = second.results.values()
    assert decoder.decode([*windows(2)], DecodingOptions(max_new_tokens=3)) == [result]


def test_nan_logits_are_no_language():
    decoder = window_decoder(constant({}, multilingual=True, fill=np.nan))
    with pytest.raises(KvcastError, match="NaN"):
        decoder.detect_languages(windows(1))


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_nothing_keeps_a_window_after_others_came(search: dict[str, Any]):
    """Not even a cycle of objects, which Python would seldom look for in a process with many."""
    decoder = window_decoder(speech(False, 1), multilingual=False, rows=3)
    results = []
    gc.disable()
    try:
        for number in range(3):
            [window] = windows(number)
            decoder.decode([window], DecodingOptions(max_new_tokens=20, language="en", **search))
            results.append(weakref.ref(window))
            del window
        assert [result() for result in results[:2]] == [None, None]
    finally:
        gc.enable()
