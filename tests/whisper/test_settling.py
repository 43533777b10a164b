"""Which words of hypotheses stand, by policy."""

from dataclasses import replace

import pytest

from kit.scripted_whisper import ENGLISH, NoRuntime, scripted_model, tokenizer
from kvcast.errors import UsageError
from kvcast.speech.params import LiveParams
from kvcast.whisper.local_agreement import AlignAtt, LocalAgreement, Place, Unit
from kvcast.whisper.model import WhisperModel

LENGTH = 500


def heard(*words: tuple[str, float, float]) -> list[Unit]:
    """Return words, each with the seconds of sound after it and its probability."""
    at = [(text, LENGTH - round(50 * after), probability) for text, after, probability in words]
    return [Unit((), (1,), text, Place(end, probability, end)) for text, end, probability in at]


SURE = heard((" we", 1.0, 0.95), (" are", 0.5, 0.9), (" met", 0.4, 1.0))


def test_probable_words_settle_before_the_margin():
    assert AlignAtt(25).settled([[], SURE], LENGTH) == 2
    assert AlignAtt(20).settled([[], SURE], LENGTH) == 3
    assert AlignAtt(60).settled([[], SURE], LENGTH) == 0


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
    assert AlignAtt(25).settled([former, latest], LENGTH) == count
    assert AlignAtt(250).settled([former, latest], LENGTH) == (count if after == 5 else 0)


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
    assert AlignAtt(25).settled([[], heard(*words)], LENGTH) == count


def test_times_and_words_without_a_place_do_not_stand():
    [we] = heard((" we", 3.0, 1.0))
    for policy in (AlignAtt(25), LocalAgreement(2)):
        for open_end in (Unit((100,), (), ""), Unit((), (2,), " are")):
            units = [we, open_end, we]
            assert policy.settled([units, units], LENGTH) == 1


def test_agreement_waits_for_audio_after_the_word():
    units = heard((" we", 5.0, 0.2), (" are", 2.0, 0.6), (" met", 1.9, 0.9))
    assert LocalAgreement(2).settled([units, units], LENGTH) == 2
    assert LocalAgreement(2).settled([units[:1], units], LENGTH) == 1
    assert LocalAgreement(3).settled([units[:1], units, units], LENGTH) == 1
    unsure = heard((" we", 4.9, 0.4))
    assert LocalAgreement(2).settled([unsure, unsure], LENGTH) == 0


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
    with pytest.raises(UsageError, match="two ways to settle words"):
        LiveParams(agreement=2, margin=1.0)
