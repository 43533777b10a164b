"""A transcription's options, laziness, notices and other facts."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.scripted_whisper import (
    NumberedWindows,
    ScriptedDecoder,
    ScriptedResult,
    scripted_model,
    tokenizer,
)
from kvcast.errors import UsageError
from kvcast.speech.params import LiveParams, TranscribeParams
from kvcast.speech.transcription import Transcription, clipped_frames
from kvcast.whisper.decoding import DecodingOptions
from kvcast.whisper.long_form import WhisperPlan, initial_tokens


def transcription(
    decoder: ScriptedDecoder, windows: NumberedWindows, **changes: Any
) -> Transcription:
    parts = {"attempts": [DecodingOptions()], "params": TranscribeParams()} | changes
    plan = WhisperPlan(decoder, parts.pop("attempts"), parts["params"])
    return Transcription(decoder.scheduler, lambda: windows, plan, **parts).open()


def one_line(error: pytest.ExceptionInfo[UsageError]) -> str:
    message = str(error.value)
    assert message
    assert "\n" not in message
    return message


def test_nothing_is_decoded_before_the_first_segment_is_taken():
    decoder = ScriptedDecoder([])
    transcription(decoder, NumberedWindows(6000))
    assert decoder.encoded == 0


def test_each_window_is_decoded_when_its_first_segment_is_taken():
    decoder = ScriptedDecoder([ScriptedResult(tokens=(50363, 50, 50413, 50413, 51, 50463))])
    transcribed = transcription(decoder, NumberedWindows(6000))
    assert [decoder.encoded for _ in transcribed] == [1, 1, 2]


ATTEMPTS = [DecodingOptions(temperature=t) for t in (0.0, 0.4, 0.8)]


def test_a_window_is_encoded_once_and_its_last_result_is_taken_whatever_it_is():
    results = [ScriptedResult(tokens=(50 + i,), avg_logprob=-2.0 - i) for i in range(3)]
    decoder = ScriptedDecoder(results)
    [segment] = transcription(decoder, NumberedWindows(300), attempts=ATTEMPTS)
    assert (decoder.encoded, len(decoder.calls)) == (1, 3)
    assert (segment.tokens, segment.avg_logprob, segment.temperature) == ((52,), -4.0, 0.8)
    assert segment.fallback == ("avg_logprob -2.00 < -1", "avg_logprob -3.00 < -1")


def test_the_first_accepted_result_is_taken_with_the_reasons_before_it():
    decoder = ScriptedDecoder(
        [ScriptedResult(tokens=(50,), compression_ratio=3), ScriptedResult(tokens=(51,))]
    )
    [segment] = transcription(decoder, NumberedWindows(300), attempts=ATTEMPTS)
    assert (segment.tokens, segment.temperature) == ((51,), 0.4)
    assert segment.fallback == ("compression_ratio 3.00 > 2.4",)
    assert [options.temperature for _, options, _ in decoder.calls] == [0.0, 0.4]


def test_a_single_attempt_is_never_rejected():
    decoder = ScriptedDecoder([ScriptedResult(tokens=(50,), avg_logprob=-9)])
    [segment] = transcription(decoder, NumberedWindows(300), attempts=ATTEMPTS[:1])
    assert (segment.avg_logprob, segment.fallback) == (-9, ())


def test_the_recording_is_released_after_the_last_segment():
    windows = NumberedWindows(6000)
    transcribed = transcription(ScriptedDecoder([]), windows)
    first = next(transcribed)
    assert not windows.closed
    rest = list(transcribed)
    assert len(rest) == 1
    assert windows.closed
    assert list(transcribed) == list(transcribed.segments) == [first, *rest]


@pytest.mark.parametrize("taken", [0, 1])
def test_closing_early_releases_the_recording_and_ends_the_segments(taken: int):
    windows = NumberedWindows(6000)
    with transcription(ScriptedDecoder([]), windows) as transcribed:
        begun = list(islice(transcribed, taken))
        assert len(begun) == taken
    assert windows.closed
    assert list(transcribed) == begun


def test_a_failure_while_decoding_releases_the_recording():
    class Fails(ScriptedDecoder):
        def decode(self, *_: Any, **__: Any) -> Any:
            raise UsageError("no")

    windows = NumberedWindows(6000)
    with pytest.raises(UsageError):
        list(transcription(Fails([]), windows))
    assert windows.closed


@pytest.mark.parametrize("batch", [None, 2])
def test_silence_is_not_decoded(batch: int | None):
    recording = NumberedWindows(9000, silent=(range(3000), range(6000, 9000)))
    decoder = ScriptedDecoder([])
    params = TranscribeParams(batch=batch, no_speech_threshold=None)
    segments = list(transcription(decoder, recording, params=params))
    assert {segment.seek // 3000 for segment in segments} == {0, 1} if batch else {1}
    assert not any(seek in range(6000, 9000) for (seek, _), _, _ in decoder.calls)


def test_no_segment_passes_its_clip():
    past = ScriptedResult(tokens=(50363, 50, 51363, 51363, 51, 51563, 51563, 52, 51663))
    decoder = ScriptedDecoder([past])
    params = TranscribeParams(clip_end=10.0)
    segments = list(transcription(decoder, NumberedWindows(2000), params=params))
    assert [(s.start, s.end) for s in segments] == [(0, 9.96), (9.96, 9.98), (9.98, 10)]


def test_duration_and_notices_are_the_recordings():
    transcribed = transcription(ScriptedDecoder([]), NumberedWindows(250, notices=("is silent",)))
    assert transcribed.duration == 2.5
    assert transcribed.notices == ("is silent",)


def test_a_clip_past_the_end_is_a_notice_and_no_segment():
    transcribed = transcription(
        ScriptedDecoder([]), NumberedWindows(250), params=TranscribeParams(clip_start=2.5)
    )
    assert transcribed.notices == ("the clip from 2.5 s is past the end, 2.50 s",)
    assert list(transcribed) == []


def test_a_clip_without_a_frame_has_its_own_notice():
    params = TranscribeParams(clip_timestamps="1,1.001,2.4,2.5")
    transcribed = transcription(ScriptedDecoder([]), NumberedWindows(250), params=params)
    assert transcribed.notices == ("the clip from 1 s is shorter than 10 ms",)
    assert [segment.start for segment in transcribed] == [2.4]


def test_clips_are_transcribed_one_after_the_other_and_prompt_each_other():
    decoder = ScriptedDecoder([ScriptedResult(tokens=(50 + i,)) for i in range(3)])
    params = TranscribeParams(clip_timestamps="10,20, 30,62.5,300")
    transcribed = transcription(decoder, NumberedWindows(9000), params=params)
    assert [(s.start, s.end) for s in transcribed] == [(10, 20), (30, 60), (60, 62.5)]
    assert [where for where, _, _ in decoder.calls] == [(1000, 1000), (3000, 3000), (6000, 250)]
    assert [prompt for _, _, prompt in decoder.calls] == [[], [50], [50, 51]]
    assert transcribed.notices == ("the clip from 300 s is past the end, 90.00 s",)


def test_only_the_first_window_has_the_prefix_until_it_is_accepted():
    decoder = ScriptedDecoder([ScriptedResult(tokens=(50,), compression_ratio=3)])
    attempts = [DecodingOptions(temperature=t, prefix="So") for t in (0.0, 0.4)]
    list(transcription(decoder, NumberedWindows(6000), attempts=attempts))
    asked = [(options.temperature, options.prefix) for _, options, _ in decoder.calls]
    assert asked == [(0.0, "So"), (0.4, "So"), (0.0, None)]


REPEATS = ScriptedResult(tokens=(50363, 50, 50413, 50413), repetition='repeats " a" 60 times')


def test_a_repetition_is_rejected_with_its_text():
    decoder = ScriptedDecoder([REPEATS, ScriptedResult(tokens=(51,))])
    transcribed = transcription(decoder, NumberedWindows(300), attempts=ATTEMPTS)
    [segment] = transcribed
    assert (segment.tokens, segment.temperature) == ((51,), 0.4)
    assert segment.fallback == ('repeats " a" 60 times',)
    assert transcribed.notices == ()


def test_the_last_attempts_repetition_is_a_notice_and_prompts_nothing():
    decoder = ScriptedDecoder([REPEATS, ScriptedResult(tokens=(51,))])
    transcribed = transcription(decoder, NumberedWindows(300))
    assert [(segment.start, segment.end) for segment in transcribed] == [(0, 1), (1, 3)]
    assert [where for where, _, _ in decoder.calls] == [(0, 300), (100, 200)]
    assert [prompt for _, _, prompt in decoder.calls] == [[], []]
    assert transcribed.notices == ('from 0.00 s the text repeats " a" 60 times: cut',)


def german_first(frame: int) -> str:
    return "de" if frame < 4000 else "fr"


def test_a_window_ends_where_its_language_does():
    decoder = ScriptedDecoder([], spoken=german_first)
    params = TranscribeParams(multilingual=True)
    segments = list(transcription(decoder, NumberedWindows(9000), params=params))
    places = [place for place, _, _ in decoder.calls]
    languages = [options.language for _, options, _ in decoder.calls]
    assert languages == sorted(languages)
    assert set(languages) == {"de", "fr"}
    assert [segment.language for segment in segments] == languages
    for (first, frames), language in zip(places, languages, strict=True):
        assert german_first(first) == language
        assert first + frames <= 5600 or language == "fr"  # a piece is no longer than 16 s
    assert [first for first, _ in places] == [0, *(sum(place) for place in places[:-1])]


def test_a_batch_has_the_same_languages():
    decoder = ScriptedDecoder([], spoken=german_first)
    params = TranscribeParams(multilingual=True, batch=1)
    segments = list(transcription(decoder, NumberedWindows(9000), params=params))
    for segment in segments:
        assert segment.language == german_first(segment.seek)
    assert {segment.language for segment in segments} == {"de", "fr"}


def test_each_clip_has_its_languages():
    decoder = ScriptedDecoder([], spoken=german_first)
    params = TranscribeParams(multilingual=True, clip_timestamps="5,10,60,65")
    list(transcription(decoder, NumberedWindows(9000), params=params))
    asked = [(place, options.language) for place, options, _ in decoder.calls]
    assert asked == [((500, 500), "de"), ((6000, 500), "fr")]


def test_one_language_is_decoded_as_if_passed():
    transcripts, calls = [], []
    for changes in (
        {"attempts": [DecodingOptions(language="en")]},
        {"params": TranscribeParams(multilingual=True)},
    ):
        decoder = ScriptedDecoder([ScriptedResult(tokens=(50364, 50, 51363, 51363))])
        transcripts.append(list(transcription(decoder, NumberedWindows(9000), **changes)))
        calls.append(decoder.calls)
    assert transcripts[0] == transcripts[1]
    assert calls[0] == calls[1]


def test_text_in_another_language_is_no_prompt():
    decoder = ScriptedDecoder([ScriptedResult(tokens=(50,))] * 9, spoken=german_first)
    params = TranscribeParams(multilingual=True, initial_prompt="So")
    list(transcription(decoder, NumberedWindows(12_000), params=params))
    languages = [options.language for _, options, _ in decoder.calls]
    # Each job says which language its prompt is in: the decoder leaves it out of other windows.
    assert decoder.prompt_languages == [None, *languages[:-1]]
    first = languages.index("fr")
    assert decoder.calls[first + 1][2] == [50]


def test_all_attempts_are_in_the_windows_language():
    failed = ScriptedResult(tokens=(50,), compression_ratio=3)
    decoder = ScriptedDecoder([failed, ScriptedResult(tokens=(50,))], spoken=german_first)
    params = TranscribeParams(multilingual=True)
    list(transcription(decoder, NumberedWindows(2000), params=params, attempts=ATTEMPTS))
    assert [options.language for _, options, _ in decoder.calls] == ["de", "de"]


@pytest.mark.parametrize(
    ("clip", "first_and_last"),
    [
        ({}, [(0, 1000)]),
        ({"clip_start": 2.346}, [(235, 1000)]),
        ({"clip_start": 2.344, "clip_end": 7.0}, [(234, 700)]),
        ({"clip_end": 99.0}, [(0, 1000)]),
        ({"clip_start": 99.0}, [(9900, 1000)]),
        ({"clip_timestamps": "0"}, [(0, 1000)]),
        ({"clip_timestamps": "1,2.344,2.344, 7"}, [(100, 234), (234, 700)]),
        ({"clip_timestamps": (1.0, 2.0, 3.0)}, [(100, 200), (300, 1000)]),
        ({"clip_timestamps": [5, 99, 100, 101]}, [(500, 1000), (10000, 1000)]),
    ],
)
def test_a_clip_is_rounded_to_frames_and_ends_with_the_recording(clip, first_and_last):
    assert clipped_frames(TranscribeParams(**clip), 1000) == first_and_last


@pytest.mark.parametrize(
    ("clip", "says"),
    [
        ({"clip_start": -1.0}, "clip_start must be 0 or more, not -1.0"),
        ({"clip_start": float("nan")}, "clip_start must be 0 or more, not nan"),
        ({"clip_start": float("inf")}, "clip_start must be 0 or more, not inf"),
        ({"clip_end": 0.0}, "clip_end must be above 0, not 0.0"),
        ({"clip_start": 5.0, "clip_end": 5.0}, "clip_end must come after clip_start 5, not 5.0"),
        ({"clip_end": float("nan")}, "clip_end must be above 0, not nan"),
        ({"clip_timestamps": "1,x"}, "clip_timestamps must be seconds with commas between"),
        ({"clip_timestamps": ""}, "clip_timestamps must be seconds with commas between"),
        ({"clip_timestamps": ()}, "clip_timestamps needs at least one start"),
        ({"clip_timestamps": "-1,5"}, "clip_timestamps must be 0 or more, not -1.0"),
        ({"clip_timestamps": [0, float("nan")]}, "clip_timestamps must be 0 or more, not nan"),
        ({"clip_timestamps": "5,2"}, "clip_timestamps must ascend, unlike 5,2"),
        ({"clip_timestamps": "5,5"}, "clip_timestamps must ascend, unlike 5,5"),
        ({"clip_timestamps": "0,9,8,10"}, "clip_timestamps must ascend, unlike 0,9,8,10"),
        ({"clip_timestamps": "0", "clip_start": 1.0}, "exclude each other"),
        ({"clip_timestamps": "0", "clip_end": 1.0}, "exclude each other"),
    ],
)
def test_an_impossible_clip_is_refused_in_one_line(clip: dict[str, float], says: str):
    with pytest.raises(UsageError) as error:
        TranscribeParams(**clip)
    assert says in one_line(error)


@given(prompt=st.text())
def test_an_initial_prompt_is_text_after_a_space(prompt: str):
    tokens = initial_tokens(TranscribeParams(initial_prompt=prompt), tokenizer())
    assert tokens == tokenizer().encode(" " + prompt.strip())
    assert all(token < tokenizer().eot for token in tokens)


@pytest.mark.parametrize(
    ("words", "hotwords", "notices"),
    [
        (223, None, []),
        (300, None, ["of its 300 tokens, the last 223 fit, and 77 are left out"]),
        (
            *(223, "word " * 10),
            ["of its 223 tokens, the last 213 fit beside the hotwords, and 10 are left out"],
        ),
    ],
)
def test_a_prompt_that_does_not_fit_is_a_notice(words, hotwords, notices):
    transcribed = scripted_model().transcribe(
        np.zeros(16000, np.float32), initial_prompt="word " * words, hotwords=hotwords
    )
    cut = "the initial prompt is cut: "
    assert [n.removeprefix(cut) for n in transcribed.notices if n.startswith(cut)] == notices


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"language": "de"}, "English only, not German"),
        ({"language": "englsh"}, "did you mean english?"),
        ({"temperature": ()}, "temperature needs at least one value"),
        ({"suppress_tokens": "99999"}, "99999 is no token"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0, not 0.0"),
        ({"no_repeat_ngram": -1}, "no_repeat_ngram must be 0 or more, not -1"),
        ({"prefix": "word " * 113}, "prefix may have 112 tokens with this model"),
        ({"hotwords": "word " * 224}, "hotwords may have 223 tokens with this model"),
        ({"multilingual": True}, "English only: leave out multilingual"),
        ({"multilingual": True, "language": "en"}, "leave out language"),
    ],
)
def test_mistakes_are_reported_before_the_recording_is_opened(options: dict[str, Any], says: str):
    with pytest.raises(UsageError) as error:
        scripted_model().transcribe("there is no such file", **options)
    assert says in one_line(error)


def test_samples_are_transcribed_as_they_are():
    model = scripted_model()
    model.scripted.place = lambda features_mt: features_mt.shape
    samples = np.tile(np.float32([0, 0.1]), 8000)
    transcribed = model.transcribe(samples, language="English", temperature=0)
    assert [segment.end for segment in transcribed] == [1.0]
    [(shape, options, _)] = model.scripted.calls
    assert shape == (80, 3000)
    assert options.language == "en"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"clip_timestamps": [[0, 5]]}, "clip_timestamps must be a number, not [0, 5]"),
        ({"clip_timestamps": ["0,5"]}, "clip_timestamps must be a number, not '0,5'"),
        ({"clip_timestamps": True}, "clip_timestamps must be a number, not True"),
        ({"batch": True}, "batch must be a whole number, not True"),
        ({"vad": "yes"}, "vad must be True or False, not 'yes'"),
        ({"multilingual": 1}, "multilingual must be True or False, not 1"),
        ({"initial_prompt": True}, "initial_prompt must be a string, not True"),
        ({"temperature": [True]}, "temperature must be a number, not True"),
        ({"suppress_tokens": [1, "2"]}, "suppress_tokens must be a whole number, not '2'"),
        ({"min_silence": 1.0}, "min_silence needs vad"),
        ({"vad_threshold": 0.4}, "vad_threshold needs vad"),
        ({"speech_pad": 0.0}, "speech_pad needs vad"),
        ({"max_speech": 20.0}, "max_speech needs vad"),
        ({"prepend_punctuations": "("}, "prepend_punctuations needs word_timestamps"),
        ({"append_punctuations": "."}, "append_punctuations needs word_timestamps"),
        (
            {"hallucination_silence_threshold": 2.0},
            "hallucination_silence_threshold needs word_timestamps",
        ),
    ],
    ids=str,
)
def test_a_value_of_another_kind_or_without_effect_is_one_line(options, problem):
    with pytest.raises(UsageError) as error:
        scripted_model().transcribe(np.zeros(16_000, np.float32), **options)
    assert one_line(error) == problem


def test_live_takes_vad_threshold_alone():
    assert LiveParams(vad_threshold=0.3).vad_threshold == 0.3
    for other in ({"min_silence": 1.0}, {"append_punctuations": "."}):
        with pytest.raises(UsageError, match="is for recordings, and means nothing live"):
            LiveParams(**other)
