"""Moonshines transcribe as transformers generates; streaming ones while the sound arrives."""

from typing import Any

import numpy as np
import pytest

import kvcast
from kit.random_moonshines import END, heard, random_moonshine, save_moonshine
from kvcast.audio.vad import BLOCK
from kvcast.errors import UsageError
from kvcast.families.moonshine_encoder import write_streamed_source
from kvcast.speech.moonshine import StreamingDecoder, StreamingSizes

RATE = 16_000


@pytest.fixture(scope="module", params=["moonshine", "streaming"])
def theirs(request: pytest.FixtureRequest) -> Any:
    return random_moonshine(request.param)


@pytest.fixture(scope="module")
def folder(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return save_moonshine(theirs, tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def model(folder: Any) -> Any:
    return kvcast.load(folder, runtime="native", quantize="none", threads=1)


def recording(seconds: float, seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    return generator.normal(0, 0.1, round(RATE * seconds)).astype(np.float32)


def generated(theirs: Any, sound: Any, **options: Any) -> tuple[int, ...]:
    [tokens] = theirs.generate(**heard(theirs, sound), do_sample=False, **options)[:, 1:].tolist()
    return tuple(tokens[: tokens.index(END)] if END in tokens else tokens)


@pytest.mark.parametrize("seconds", [0.9, 1.5])
def test_a_transcript_has_the_tokens_that_transformers_generates(theirs, model, seconds):
    sound = recording(seconds)
    # As published: 6.5 tokens a second, the first included.
    expected = generated(theirs, sound, max_length=int(6.5 * seconds))
    assert len(expected) > 2
    [segment] = model.transcribe(sound)
    assert segment.tokens == expected
    assert (segment.start, segment.end, segment.language) == (0, seconds, "en")
    [other] = model.transcribe(sound, language="ja")
    assert other.tokens == generated(theirs, sound, max_length=int(13 * seconds))


def test_batches_and_engines_give_what_each_gives_alone(model):
    sounds = [recording(seconds, seed=3) for seconds in (1.0, 1.7, 4.0)]
    options = {"max_new_tokens": 5}
    alone = [list(model.transcribe(sound, **options)) for sound in sounds]
    assert [segments[-1].end for segments in alone] == [1.0, 1.7, 4.0]
    # The streaming one has positions for less than 2 seconds.
    assert len(alone[-1]) == (1 if model.dimensions.frame == 0 else 3)
    assert [list(each) for each in model.transcribe_all(sounds, batch=3, **options)] == alone
    with kvcast.Engine(model, rows=2) as engine:
        jobs = [engine.submit(sound, **options) for sound in sounds]
        assert [list(job.result().segments) for job in jobs] == alone
    beams = [list(model.transcribe(sound, beam=3, **options)) for sound in sounds]
    assert beams != alone
    assert [
        list(each) for each in model.transcribe_all(sounds, batch=3, beam=3, **options)
    ] == beams


def test_int8_transcribes_on_other_runtimes_one_line_says_why_not(folder):
    model = kvcast.load(folder, runtime="native", quantize="int8", threads=1)
    assert any(segment.text for segment in model.transcribe(recording(1.0)))
    with pytest.raises(UsageError, match="use --runtime native"):
        kvcast.load(folder, runtime="onnx")


def listener(blocks_nb):
    """Tell speech from sound that is zero."""
    return (np.abs(blocks_nb).max(axis=1) > 0).astype(np.float32)


def test_live_is_for_models_over_frames_and_takes_few_options(theirs, model):
    if theirs.config.model_type == "moonshine":
        with pytest.raises(UsageError, match="does not support live"):
            model.live()
    else:
        with pytest.raises(UsageError, match="beam is not supported"):
            model.live(beam=2)


@pytest.mark.parametrize("theirs", ["streaming"], indirect=True)
def test_a_growing_text_is_what_is_generated_of_the_sound_so_far(theirs, model):
    dimensions = model.dimensions
    sizes = StreamingSizes(samples=320, ahead=dimensions.sees_ahead, positions=90, tokens=16)
    start = dimensions.start_token
    text = StreamingDecoder(
        model.runtime, write_streamed_source(dimensions), sizes, start=start, ends=[END]
    )
    for seed, pieces in ((1, (1600, 320, 3200, 650, 5000)), (2, (9000, 320))):
        sound, heard_to = recording(1.0, seed), 0
        text.begin()
        guess: list[int] = []
        for piece in pieces:
            text.add(sound[heard_to : heard_to + piece])
            heard_to += piece
            text.decode_stable(guess, 12)
            guess = text.decode_so_far(guess, 12)
            whole = sound[: heard_to // 320 * 320]
            assert tuple(guess) == generated(theirs, whole, max_new_tokens=12)
        assert text.end()
        padded = np.pad(sound[:heard_to], (0, -heard_to % 320))
        assert tuple(text.decode_complete(guess, 12)) == generated(
            theirs, padded, max_new_tokens=12
        )
        text.confirmed = [7, 8, 9]
        assert text.decode_complete([7, 8, 9], 12)[:3] == [7, 8, 9]


@pytest.mark.parametrize("theirs", ["streaming"], indirect=True)
def test_live_text_confirms_and_utterances_end(theirs, model):
    silence = np.zeros(RATE, np.float32)
    sound = np.concatenate([recording(1.2), silence, recording(2.6, seed=5), silence])
    for piece in (700, 5000):
        live = model.live(listener, pause=0.3)
        starts = range(0, len(sound), piece)
        updates = [update for at in starts for update in live.feed(sound[at : at + piece])]
        updates += live.finish()
        segments = [update.segment for update in updates if update.segment is not None]
        # The model has positions for less than 2 seconds, so the second utterance becomes two.
        assert [segment.id for segment in segments] == [0, 1, 2]
        confirmed = "".join(update.settled for update in updates)
        assert confirmed == "".join(segment.text for segment in segments)
        assert 0 <= segments[0].start < segments[0].end <= segments[1].start
        assert all(segment.text.strip() for segment in segments)
        assert live.language == "en"
    late = model.live(listener, pause=0.3, step=10)
    [update] = [*late.feed(sound[: 50 * BLOCK]), *late.finish()]
    heard_to = (38 + 9) * BLOCK  # the blocks of speech, and of the pause
    whole = np.pad(sound[:heard_to], (0, -heard_to % 320))
    most = int(6.5 * heard_to / RATE)
    assert update.segment.tokens == generated(theirs, whole, max_length=most)
