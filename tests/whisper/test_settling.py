"""Which words of live hypotheses settle, and what follows them in the next hypothesis."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kit.scripted_whisper import ENGLISH, NoRuntime, scripted_model, tokenizer
from kvcast.errors import UsageError
from kvcast.speech.params import LiveParams
from kvcast.whisper.local_agreement import AlignAtt, LocalAgreement, Place, Unit, agreed, continued
from kvcast.whisper.model import WhisperModel

LENGTH = 500


def heard(*words: tuple[str, float, float]) -> list[Unit]:
    """Return words, each with the seconds of sound after it and its probability."""
    at = [(text, LENGTH - round(50 * after), probability) for text, after, probability in words]
    return [Unit((), (1,), text, Place(end, probability, end)) for text, end, probability in at]


SURE = heard((" we", 1.0, 0.95), (" are", 0.5, 0.9), (" met", 0.4, 1.0))


def test_probable_words_settle_before_the_margin():
    assert AlignAtt(25).confirmed([[], SURE], LENGTH) == 2
    assert AlignAtt(20).confirmed([[], SURE], LENGTH) == 3
    assert AlignAtt(60).confirmed([[], SURE], LENGTH) == 0


@pytest.mark.parametrize(
    ("after", "probability", "alike", "count"),
    [
        (1.4, 0.89, True, 0),
        (1.5, 0.89, True, 1),
        (1.5, 0.89, False, 0),
        (1.5, 0.49, True, 0),
        (3.0, 0.49, True, 1),
        (3.0, 0.24, True, 0),
        (5.0, 0.0, True, 1),
        (5.0, 0.0, False, 0),
    ],
)
def test_other_words_wait_for_agreement_and_time(after, probability, alike, count):
    latest = heard((" we", after, probability))
    former = latest if alike else heard((" he", after, probability))
    assert AlignAtt(25).confirmed([former, latest], LENGTH) == count
    assert AlignAtt(250).confirmed([former, latest], LENGTH) == (count if after == 5 else 0)


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ([(" we", 1.0, 0.1), (" are", 0.5, 0.9)], 2),
        ([(" we", 0.98, 0.1), (" are", 0.5, 0.9)], 0),
        ([(" we", 1.0, 0.1), (" are", 0.48, 0.9)], 0),
        ([(" we", 1.0, 0.1), (" are", 0.5, 0.8)], 0),
        ([(" we", 1.2, 0.1), (" are", 1.0, 0.1), (" met", 0.6, 0.9)], 0),
    ],
)
def test_a_sure_word_after_it_vouches_for_a_word(words, count):
    assert AlignAtt(25).confirmed([[], heard(*words)], LENGTH) == count


def test_times_and_words_without_a_place_do_not_stand():
    [we] = heard((" we", 3.0, 1.0))
    for policy in (AlignAtt(25), LocalAgreement(2)):
        for open_end in (Unit((100,), (), ""), Unit((), (2,), " are")):
            units = [we, open_end, we]
            assert policy.confirmed([units, units], LENGTH) == 1


def test_agreement_waits_for_audio_after_the_word():
    units = heard((" we", 5.0, 0.2), (" are", 2.0, 0.6), (" met", 1.9, 0.9))
    assert LocalAgreement(2).confirmed([units, units], LENGTH) == 2
    assert LocalAgreement(2).confirmed([units[:1], units], LENGTH) == 1
    assert LocalAgreement(3).confirmed([units[:1], units, units], LENGTH) == 1
    unsure = heard((" we", 4.9, 0.4))
    assert LocalAgreement(2).confirmed([unsure, unsure], LENGTH) == 0


def test_a_model_settles_by_attention_where_its_heads_are_known():
    unknown = scripted_model()
    assert not ENGLISH.has_known_heads
    dimensions = replace(ENGLISH, decoder_heads=2, alignment_heads=((0, 1),))
    assert dimensions.has_known_heads
    known = WhisperModel(NoRuntime(), tokenizer(), dimensions)  # type: ignore[arg-type]
    for model, options, policy in (
        (known, {}, AlignAtt(25)),
        (known, {"margin": 0.2}, AlignAtt(10)),
        (known, {"agreement": 3}, LocalAgreement(3)),
        (unknown, {}, LocalAgreement(2)),
        (unknown, {"agreement": 4}, LocalAgreement(4)),
    ):
        window = model.streaming_window(LiveParams(**options), lambda _: None)
        assert window._policy == policy


def test_one_way_to_settle_words():
    with pytest.raises(UsageError, match="margin and agreement exclude each other"):
        LiveParams(agreement=2, margin=1.0)


def said(text: str) -> list[Unit]:
    """Return a unit for each word between bars."""
    return [Unit((), (number,), word) for number, word in enumerate(text.split("|"))]


@pytest.mark.parametrize(
    ("confirmed", "hypothesis", "left"),
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
def test_the_continuation_of_settled_words_is_found(confirmed: str, hypothesis: str, left: str):
    units = said(hypothesis)
    count = continued(said(confirmed), units)
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
    ("confirmed", "hypothesis", "count"),
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
def test_words_in_another_spelling_match_by_their_ends(confirmed, hypothesis, count):
    assert continued(confirmed, hypothesis) == count


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
