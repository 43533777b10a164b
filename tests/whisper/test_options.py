"""Decoding options, hotwords and prefixes: their limits, and their places in the prompt."""

from typing import Any

import numpy as np
import pytest
from test_transcription import one_line
from test_window_decoder_equals_openai import our_tokenizer

from kit.scripted_runtimes import ScriptedRuntime, windows
from kvcast.decoding.logits_processors import SuppressTokens
from kvcast.errors import UsageError
from kvcast.speech.params import WindowParams
from kvcast.transcripts.segments import compression_ratio
from kvcast.whisper.decoding import DecodingOptions, WindowPrompt, check_prompt
from kvcast.whisper.windows import WindowDecoder


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"task": "summarize"}, "task must be one of transcribe, translate, not 'summarize'"),
        ({"beam": 0}, "beam must be 1 or more, not 0"),
        ({"best_of": 0, "temperature": 1.0}, "best_of must be 1 or more, not 0"),
        ({"max_new_tokens": 0}, "max_new_tokens must be 1 or more, not 0"),
        ({"seed": -1}, "seed must be 0 or more, not -1"),
        ({"temperature": -0.1}, "temperature must be 0 or more, not -0.1"),
        ({"temperature": float("nan")}, "temperature must be 0 or more, not nan"),
        ({"temperature": float("inf")}, "temperature must be 0 or more, not inf"),
        ({"best_of": 5}, "best_of needs a temperature above 0"),
        ({"temperature": 0.5, "beam": 5}, "beam needs temperature 0"),
        ({"patience": 1.0}, "patience needs a beam of 2 or more"),
        ({"beam": 5, "patience": 0.0}, "patience must be above 0, not 0.0"),
        ({"beam": 5, "patience": float("inf")}, "patience must be above 0, not inf"),
        ({"beam": 2, "patience": 0.1}, "rounds to no finished beam"),
        ({"length_penalty": -0.1}, "length_penalty must be from 0 to 1, not -0.1"),
        ({"length_penalty": 1.5}, "length_penalty must be from 0 to 1, not 1.5"),
        ({"length_penalty": float("nan")}, "length_penalty must be from 0 to 1, not nan"),
        ({"suppress_tokens": "1,two"}, "ids with commas between, not '1,two'"),
        ({"suppress_tokens": "1,,2"}, "ids with commas between, not '1,,2'"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], says: str):
    with pytest.raises(UsageError) as error:
        DecodingOptions(**options)
    assert says in one_line(error)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"task": "translate"}, "English only and cannot translate"),
        ({"suppress_tokens": "51864"}, "suppress_tokens: 51864 is no token"),
        ({"suppress_tokens": [5, -2]}, "suppress_tokens: -2 is no token"),
    ],
)
def test_options_that_the_model_lacks_are_refused(options: dict[str, Any], says: str):
    with pytest.raises(UsageError) as error:
        silent_decoder(False).decode(windows(0), DecodingOptions(**options))
    assert says in one_line(error)


@pytest.mark.parametrize("options", [{}, {"suppress_tokens": "-1,0,51863"}, {"beam": 5}])
def test_valid_options_pass(options: dict[str, Any]):
    DecodingOptions(**options).check(our_tokenizer(False), 448)


def silent_decoder(multilingual: bool) -> WindowDecoder:
    known = our_tokenizer(multilingual)

    def nothing_stands_out(number: int, written: tuple[int, ...]) -> np.ndarray:
        return np.zeros(known.vocab_size, np.float32)

    return WindowDecoder(ScriptedRuntime(nothing_stands_out), known, 448)


def test_languages_that_the_model_lacks_are_refused():
    with pytest.raises(UsageError, match=r"^unknown language 'klingon'.*$"):
        silent_decoder(True).decode(windows(0), DecodingOptions(language="klingon"))
    with pytest.raises(UsageError, match=r"no language to detect.*$"):
        silent_decoder(False).detect_languages(windows(0))


def test_windows_and_temperatures_of_one_seed_are_sampled_apart():
    drawn = [
        DecodingOptions(temperature=temperature, best_of=5, seed=seed).strategy(stream)
        for temperature in (0.2, 0.4)
        for seed in (0, 1)
        for stream in (0, 3000)
    ]
    assert len({strategy.seed for strategy in drawn}) == len(drawn)


@pytest.mark.parametrize("multilingual", [False, True])
def test_minus_one_stands_for_non_speech_tokens_among_other_ids(multilingual: bool):
    known = our_tokenizer(multilingual)
    logits_rv = np.zeros((1, known.vocab_size), np.float32)
    for logit_filter in DecodingOptions(suppress_tokens="7,-1,9").filters(known):
        if isinstance(logit_filter, SuppressTokens):
            logit_filter.apply(logits_rv, np.array([[7]]))
    masked = set(np.flatnonzero(np.isneginf(logits_rv[0])).tolist())
    assert masked == {7, 9, *known.non_speech_tokens, *known.control_tokens}


def test_compression_ratio_of_repetition_is_high_and_of_nothing_zero():
    assert compression_ratio("") == 0
    assert compression_ratio("no repetition here") < 1.2
    assert compression_ratio("and so on " * 50) > 10


CONTEXT = 448
TOKENIZER = our_tokenizer(True)


def prompt(*previous: int, context: int = CONTEXT, **options: object) -> WindowPrompt:
    return WindowPrompt.of(
        WindowParams(**options), "de", previous=previous, tokenizer=TOKENIZER, context=context
    )


def test_generated_tokens_follow_the_prefix():
    spoken = (50, TOKENIZER.timestamp_begin + 9)
    parts = WindowPrompt.of(
        WindowParams(prefix="So"),
        "de",
        previous=(),
        forced=spoken,
        tokenizer=TOKENIZER,
        context=CONTEXT,
    )
    assert parts.forced == (TOKENIZER.timestamp_begin, *TOKENIZER.encode(" So"), *spoken)


def words(count: int) -> str:
    """Text of so many tokens."""
    text = " ".join(["word"] * count)
    assert len(TOKENIZER.encode(" " + text)) == count
    return text


def test_without_anything_there_is_only_the_task():
    task = TOKENIZER.sot_sequence("de", "transcribe", timestamps=True)
    assert prompt() == WindowPrompt(before=(), task=task, forced=())
    assert prompt().tokens == task


def test_hotwords_precede_the_text_before():
    hotwords = TOKENIZER.encode(" Elinor, Marianne")
    for spelled in ("Elinor, Marianne", "  Elinor, Marianne \n"):
        parts = prompt(50, 51, hotwords=spelled)
        assert parts.before == (TOKENIZER.sot_prev, *hotwords, 50, 51)
    assert prompt(hotwords="Elinor, Marianne").before == (TOKENIZER.sot_prev, *hotwords)


def test_the_previous_text_fills_the_room_beside_hotwords():
    parts = prompt(*range(1000), hotwords=words(23))
    assert len(parts.before) == 224
    assert parts.before[24:] == tuple(range(800, 1000))
    full = prompt(*range(1000), hotwords=words(223))
    assert full.before == (TOKENIZER.sot_prev, *TOKENIZER.encode(" " + words(223)))


def test_a_prefix_is_behind_the_time_at_which_the_window_begins():
    text = tuple(TOKENIZER.encode(" So, then"))
    assert prompt(prefix=" So, then").forced == (TOKENIZER.timestamp_begin, *text)
    untimed = prompt(prefix="So, then", timestamps=False)
    assert untimed.forced == text
    assert untimed.task[-1] == TOKENIZER.no_timestamps
    assert untimed.tokens == (*untimed.task, *text)


@pytest.mark.parametrize(("name", "most"), [("hotwords", 223), ("prefix", 112)])
def test_too_long_prompts_are_refused_in_one_line(name: str, most: int):
    check_prompt(WindowParams(**{name: words(most)}), TOKENIZER, CONTEXT)
    too_long = WindowParams(**{name: words(most + 1)})
    with pytest.raises(UsageError) as error:
        check_prompt(too_long, TOKENIZER, CONTEXT)
    assert str(error.value) == (
        f"{name} may have {most} tokens with this model, not {most + 1}: shorten it"
    )


@pytest.mark.parametrize("context", [16, 40, 448])
def test_the_longest_prompt_leaves_room_for_text(context: int):
    longest = prompt(
        *range(1000), context=context, hotwords=words(context // 2 - 1), prefix=words(context // 4)
    )
    assert len(longest.tokens) <= context
