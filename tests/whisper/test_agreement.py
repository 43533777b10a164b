"""What hypotheses of the same sound agree on, and what in them follows settled words."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kvcast.whisper.local_agreement import Place, Unit, agreed, continued


def said(text: str) -> list[Unit]:
    """Return a unit for each word between bars."""
    return [Unit((), (number,), word) for number, word in enumerate(text.split("|"))]


@pytest.mark.parametrize(
    ("settled", "hypothesis", "left"),
    [
        (" we| are", " we| are| met", " met"),
        (" We| are", " we| are|,| met", ",| met"),
        (" We| are|,", " we| are|,| met", " met"),
        (" We| are|.", " we| are| met", " met"),
        (" said|,", ' said|,| "|Come| in', ' "|Come| in'),
        (" walked| along| I", " walked| along| a| road", " road"),
        (" testing| weather| detonation", " testing| whether| that| nation|,| or", ",| or"),
        (" whether| that| nation", " weather| detonation| or", " or"),
        (" it| was| the| best", " it| was| the| best| it| was| the| worst", " it| was| the| worst"),
        (" that", " that| that| nation", " that| nation"),
        (" a| b| c| d| e| f", " c| d| e| f| g", " g"),
        (" 我| 们", "我|们|在", "在"),
        ("我|看|到|他", "我|看|到|她|了", "了"),
    ],
)
def test_the_continuation_of_settled_words_is_found(settled: str, hypothesis: str, left: str):
    units = said(hypothesis)
    count = continued(said(settled), units)
    assert count is not None
    assert "|".join(unit.text for unit in units[count:]) == left


def ending(text: str, *seconds: float) -> list[Unit]:
    """Return words that end at these times."""
    stamps = [round(50 * time) for time in seconds]
    return [
        replace(unit, place=Place(stamp, 1.0, stamp))
        for unit, stamp in zip(said(text), stamps, strict=True)
    ]


@pytest.mark.parametrize(
    ("settled", "hypothesis", "count"),
    [
        (
            ending(" the house| was| sold| in| nineteen| ninety| six", 1, 2, 3, 3.2, 3.8, 4.2, 4.6),
            ending(" the house| was| sold| in| 1996| and| he| left", 1, 2, 3, 3.2, 4.5, 4.7, 5, 6),
            5,
        ),
        (
            ending(" the train| leaves| at| seven| thirty", 1, 2, 2.3, 2.8, 3.3),
            ending(" the train| leaves| at| 7|:30| from| platform", 1, 2, 2.3, 2.8, 3.2, 3.6, 4),
            5,
        ),
        (
            ending(" the old man| gave| her| twenty| five", 1, 1.5, 2, 2.6, 3),
            ending(" the old man| gave| her| 25| pounds", 1, 1.5, 2, 3.1, 3.7),
            4,
        ),
        # Times of words that are spelled alike do not matter.
        (ending(" gave| her", 1, 1.2), ending(" gave| her| a| dog", 0.9, 1.0, 1.2, 1.6), 2),
    ],
)
def test_words_in_another_spelling_match_by_their_ends(settled, hypothesis, count):
    assert continued(settled, hypothesis) == count


@pytest.mark.parametrize("hypothesis", [" something| else", "", " ♪"])
def test_another_hypothesis_continues_nothing(hypothesis: str):
    units: Sequence[Unit] = said(hypothesis) if hypothesis else []
    assert continued(said(" whether| that"), units) is None


def test_nothing_settled_is_followed_by_all():
    assert continued([], said(" we| are")) == 0
    assert continued([Unit((50,), (), "")], said(" we| are")) == 0


def test_settled_marks_alone_cannot_be_found_again():
    assert continued(said(" ♪"), said(" ♪| ♪")) is None


def test_agreement_ends_with_the_first_word_that_differs():
    assert agreed([said(" we| are| met"), said(" we| are| not")]) == 2
    assert agreed([said(" we"), []]) == 0


def test_places_move_with_the_stretch():
    unit = Unit((100, 120), (1,), " we", Place(150, 0.5, 140))
    assert unit.later(110) == Unit((0, 10), (1,), " we", Place(40, 0.5, 30))
    assert unit.later(145).place == Place(5, 0.5, 0)
