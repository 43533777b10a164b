"""Hotwords, the text before, the task and a prefix, in their places and within their limits."""

import pytest
from test_window_decoder_equals_openai import our_tokenizer

from kvcast.errors import UsageError
from kvcast.speech.params import WindowParams
from kvcast.whisper.decoding import WindowPrompt, check_prompt

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
        written=spoken,
        tokenizer=TOKENIZER,
        context=CONTEXT,
    )
    assert parts.written == (TOKENIZER.timestamp_begin, *TOKENIZER.encode(" So"), *spoken)


def words(count: int) -> str:
    """Text of so many tokens."""
    text = " ".join(["word"] * count)
    assert len(TOKENIZER.encode(" " + text)) == count
    return text


def test_without_anything_there_is_only_the_task():
    task = TOKENIZER.sot_sequence("de", "transcribe", timestamps=True)
    assert prompt() == WindowPrompt(before=(), task=task, written=())
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
    assert prompt(prefix=" So, then").written == (TOKENIZER.timestamp_begin, *text)
    untimed = prompt(prefix="So, then", timestamps=False)
    assert untimed.written == text
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
