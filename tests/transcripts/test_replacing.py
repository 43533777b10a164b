"""Names and terms are replaced by rules, in texts and in words."""

import pytest

from kvcast.errors import UsageError
from kvcast.speech.params import TranscribeParams
from kvcast.transcripts.segments import Replacements, Segment, Word

RULES = ["# terms", "", "cube control => kubectl", "cube => Cube", "new york=>NYC", "um =>"]


def segment(text: str) -> Segment:
    words = [
        Word(start=i, end=i + 1, word=f" {word}", probability=1 / (i + 1))
        for i, word in enumerate(text.split())
    ]
    rest = {"avg_logprob": 0, "compression_ratio": 1, "no_speech_prob": 0, "fallback": ()}
    return Segment(
        **rest,
        **{"id": 0, "seek": 0, "start": 0, "end": len(words), "text": f" {text}", "tokens": (1,)},
        **{"language": "en", "temperature": 0, "words": tuple(words)},
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Cube Control, please.", "kubectl, please."),
        ("a cube and a cubes cube", "a Cube and a cubes Cube"),
        ("in New   York. (new york)", "in NYC. (NYC)"),
        ("nothing here", "nothing here"),
        ("cube-control cube control", "Cube-control kubectl"),
    ],
)
def test_whole_words_are_replaced_in_any_case(text: str, expected: str):
    result = Replacements.of(RULES).apply(segment(text))
    assert result.text == f" {expected}"
    assert "".join(word.word for word in result.words or ()) == f" {expected}"


def test_words_replaced_together_are_one_that_lasts_as_long():
    words = Replacements.of(RULES).apply(segment("the cube control um works")).words or ()
    assert [(word.word, word.start, word.end) for word in words] == [
        (" the", 0, 1),
        (" kubectl", 1, 3),
        (" works", 4, 5),
    ]
    assert words[1].probability == pytest.approx((1 / 2 + 1 / 3) / 2)


def test_without_rules_nothing_changes():
    said = segment("as it is")
    assert Replacements.of([]).apply(said) is said


@pytest.mark.parametrize("line", ["cube", "=> kubectl", "a -> b"])
def test_an_invalid_rule_is_reported(line: str):
    with pytest.raises(UsageError, match="replacement 2 must be FROM => TO"):
        TranscribeParams(replace=["a => b", line])
