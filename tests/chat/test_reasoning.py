"""Reasoning and answers, however a text is cut into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcast.chat.parsers import ReasoningParser

TEXTS = {
    "<think>\nfirst\n\nthen\n</think>\n\nThe answer": ("first\n\nthen", "The answer"),
    "  <think>a</think>b<think>c</think>": ("a", "b<think>c</think>"),
    "<think></think>only this": ("", "only this"),
    "<think>never ends </thin": ("never ends </thin", ""),
    "<think>a < b </ c </think>d": ("a < b </ c", "d"),
    " an answer, no <think>": ("", " an answer, no <think>"),
    "<thin air": ("", "<thin air"),
    "  ": ("", "  "),
    "<thi": ("", "<thi"),
    "": ("", ""),
}


def parted(parser: ReasoningParser, pieces: list[str]) -> tuple[str, str]:
    said = [parser.push(piece) for piece in pieces] + [parser.push("", last=True)]
    return "".join(part for part, _ in said), "".join(part for _, part in said)


@pytest.mark.parametrize("text", TEXTS)
@given(data=st.data())
def test_reasoning_is_what_stands_between_its_marks(text: str, data: st.DataObject):
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parted(ReasoningParser(), pieces) == TEXTS[text]


def test_a_prompt_may_have_begun_the_reasoning():
    for pieces in (["\na", "b\n</th", "ink>\nc"], ["\nab\n</think>\nc"]):
        assert parted(ReasoningParser(begun=True), pieces) == ("ab", "c")
    assert parted(ReasoningParser(begun=True), ["a "]) == ("a", "")


def test_what_is_certain_is_told_at_once():
    parser = ReasoningParser()
    assert parser.push("<think>so ") == ("so", "")
    assert parser.reasons
    assert parser.push("far </") == (" far", "")
    assert parser.push("think> an") == ("", "an")
    assert not parser.reasons
    assert parser.push(" answer ") == ("", " answer ")
