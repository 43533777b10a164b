"""What `kvcast.load` returns, as a caller meets it: other names, other tasks, tasks, closing."""

import asyncio
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kvcast
from kvcast import KvcastError
from kvcast.engine import ClosedError
from kvcast.errors import UsageError

RECORDING = "tests/data/spoken.ogg"
pytestmark = pytest.mark.usefixtures("here")
MESSAGES = [{"role": "user", "content": "Name a colour."}]


def test_a_method_of_other_models_is_not_there_and_says_what_to_do(speech, text, source):
    for model, name, advice in (
        (speech, "generate", "WhisperModel has no generate: use transcribe, or load a text model"),
        (text, "transcribe", "TextModel has no transcribe: use generate, or load another model"),
        (source, "chat", "T5Model has no chat: use generate, or load another model"),
    ):
        assert isinstance(model, kvcast.Model)
        assert not hasattr(model, name)
        with pytest.raises(UsageError) as error:
            getattr(model, name)
        assert str(error.value) == advice
    with pytest.raises(AttributeError, match="'TextModel' object has no attribute 'gen'"):
        text.gen  # noqa: B018


FOREIGN = [
    ("load", {"device": "cuda"}, "load() takes no device='cuda': kvcast's kernels run on the"),
    ("load", {"device": "cpu"}, "load() takes no device='cpu': it is so anyway; leave it out"),
    ("load", {"compute_type": "int8"}, "no compute_type='int8': it is quantize='int8' here"),
    ("load", {"compute_type": "float16"}, "quantize int8 is the default, none is fp32"),
    ("load", {"n_ctx": 4096}, "load() takes no n_ctx: a cache is as long as its text"),
    ("load", {"thread": 2}, "load() takes no thread: did you mean threads?"),
    ("load", {"frobnicate": 2}, "load() takes no frobnicate: see help() for its keywords"),
    ("transcribe", {"beam_size": 5}, "transcribe() takes no beam_size: it is beam here"),
    ("transcribe", {"vad_filter": True}, "no vad_filter=True: it is vad=True here"),
    ("transcribe", {"vad_min_silence_duration_ms": 5}, "it is min_silence here, in seconds"),
    ("transcribe", {"fp16": True}, "fp16=True: weights are int8 by default; quantize none"),
    ("transcribe", {"verbose": True}, "no verbose=True: leave it out, or give progress"),
    ("transcribe", {"device": "cuda"}, "no device: see kvcast.load: kvcast's kernels run"),
    ("transcribe", {"word_timestamp": True}, "did you mean word_timestamps?"),
    ("generate", {"max_tokens": 5}, "generate() takes no max_tokens: it is max_new_tokens here"),
    ("generate", {"max_length": 5}, "max_new_tokens counts the new tokens, without the prompt"),
    ("generate", {"do_sample": True}, "do_sample=True: a temperature above 0 samples"),
    ("generate", {"stream": True}, "model.stream(prompt) yields the pieces of a text"),
    ("generate", {"num_return": 2}, "num_return: it is n here"),
    ("chat", {"stop_strings": "a"}, "chat() takes no stop_strings: it is stop here"),
    ("chat", {"messages": MESSAGES}, "multiple values for argument 'messages'"),
    ("submit", {"max_tokens": 5}, "submit() takes no max_tokens: it is max_new_tokens here"),
]


@pytest.mark.parametrize(("name", "options", "says"), FOREIGN)
def test_a_keyword_of_another_library_is_answered(name, options, says, speech, text, request):
    calls: dict[str, Callable[..., Any]] = {
        "load": lambda **options: kvcast.load("demo", **options),
        "transcribe": lambda **options: speech.transcribe(RECORDING, **options),
        "generate": lambda **options: text.generate("a", **options),
        "chat": lambda **options: text.chat(MESSAGES, **options),
    }
    if name == "submit":
        engine = kvcast.Engine(text, rows=1)
        request.addfinalizer(engine.close)
        calls["submit"] = lambda **options: engine.submit("a", **options)
    with pytest.raises(TypeError) as error:
        calls[name](**options)
    assert says in str(error.value)


def test_a_streamed_answer_is_the_answer_in_pieces(text):
    whole = text.chat(MESSAGES, max_new_tokens=8)
    pieces = text.chat(MESSAGES, max_new_tokens=8, stream=True)
    taken = list(pieces)
    assert len(taken) > 1
    assert "".join(taken) == whole.text == pieces.result.text
    with pytest.raises(UsageError, match="a stream is one text: leave out n"):
        text.chat(MESSAGES, n=2, temperature=1.0, stream=True)


def test_tasks_get_what_threads_get_and_the_loop_goes_on(speech, text, monkeypatch):
    used: set[threading.Thread] = set()
    for model in (speech, text):
        decode = model.runtime.decode

        def watched(*given, decode=decode, **options):
            used.add(threading.current_thread())
            return decode(*given, **options)

        monkeypatch.setattr(model.runtime, "decode", watched)

    async def all_ways() -> list[Any]:
        return [
            (await text.agenerate("Red,", max_new_tokens=5)).text,
            [each.text for each in await text.agenerate(["Red,", "One,"], max_new_tokens=5)],
            (await text.achat(MESSAGES, max_new_tokens=5)).text,
            [piece async for piece in await text.achat(MESSAGES, max_new_tokens=5, stream=True)],
            [piece async for piece in text.stream("Red,", max_new_tokens=5)],
            (await speech.atranscribe(RECORDING, clip_end=10)).text,
            [each.text async for each in speech.transcribe(RECORDING, clip_end=10)],
        ]

    found = asyncio.run(all_ways())
    assert used
    assert threading.main_thread() not in used
    assert found == [
        text.generate("Red,", max_new_tokens=5).text,
        [each.text for each in text.generate(["Red,", "One,"], max_new_tokens=5)],
        text.chat(MESSAGES, max_new_tokens=5).text,
        list(text.chat(MESSAGES, max_new_tokens=5, stream=True)),
        list(text.stream("Red,", max_new_tokens=5)),
        speech.transcribe(RECORDING, clip_end=10).text,
        [each.text for each in speech.transcribe(RECORDING, clip_end=10)],
    ]


def test_errors_reach_tasks(speech):
    with pytest.raises(KvcastError, match=r"missing\.wav"):
        asyncio.run(speech.atranscribe("missing.wav"))


def test_a_repr_tells_what_there_is(speech, text):
    transcription, pieces = (
        speech.transcribe(RECORDING, clip_end=4),
        text.stream("a", max_new_tokens=2),
    )
    live, session = speech.live(), text.session("Red,")
    with kvcast.Engine(text, rows=1) as engine:
        job = engine.submit("a", max_new_tokens=1)
        job.result()
        assert repr(engine) == f"<Engine of {text!r}: 1 rows, 0 jobs running, 0 waiting>"
    assert repr(engine).endswith("1 rows, closed>")
    assert repr(job).startswith("<Job: TextGeneration(")
    assert (
        repr(transcription)
        == "<Transcription: nothing decoded yet; iterate over it, or take its text>"
    )
    assert repr(pieces) == "<TextPieces: 0 tokens, not done>"
    assert len([*transcription, *pieces]) > 1
    assert repr(transcription) == "<Transcription: 1 segments>"
    assert repr(pieces) == "<TextPieces: 2 tokens, length>"
    live.feed(np.zeros(8000, np.float32))
    assert repr(live) == "<LiveTranscription: 0.5 s, 0 words confirmed>"
    assert repr(session) == f"<TextSession: a prefix of {len(session.tokens)} tokens>"


def test_progress_is_shown_on_standard_error_when_wanted(speech, text, capsys):
    assert list(speech.transcribe(RECORDING, clip_end=5))
    assert capsys.readouterr() == ("", "")
    assert list(speech.transcribe(RECORDING, clip_end=5, progress=True))
    assert list(speech.transcribe(RECORDING, clip_end=5, channels="split", progress=True))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 2
    assert shown.err.count("transcribing: 100%") >= 2
    text.generate(["Red,", "One,"], max_new_tokens=2, progress=True)
    assert "generating: 100% |██████████| 2 of 2 prompts" in capsys.readouterr().err
    with pytest.raises(UsageError, match="progress must be True or False, not 'yes'"):
        speech.transcribe(RECORDING, progress="yes")
    with pytest.raises(UsageError, match="progress is for recordings"):
        speech.live(progress=True)


CLOSED = "the model is closed: load it again"


@pytest.mark.parametrize(("runtime", "holder"), [("native", "interpreter"), ("onnx", "_session")])
def test_a_closed_model_holds_no_weights_and_refuses_every_call(runtime, holder):
    with kvcast.load("demo", runtime=runtime, threads=1) as model:
        begun = model.transcribe(RECORDING)
        weights = weakref.ref(getattr(model.runtime, holder))
    model.close()
    assert weights() is None
    assert repr(model) == "<WhisperModel: Whisper, English, closed>"
    for call in (
        lambda: model.transcribe(RECORDING).text,
        lambda: list(begun),
        lambda: model.align(RECORDING, "a"),
        lambda: kvcast.Engine(model),
    ):
        with pytest.raises(KvcastError, match=CLOSED):
            call()
    assert model.languages == ("en",)


def test_a_closed_text_model_refuses_every_call():
    with kvcast.load("demo-chat", runtime="native", threads=1) as model:
        session, pieces = model.session("Red,"), model.stream("Red,", max_new_tokens=8)
        next(pieces)
        engine = kvcast.Engine(model, rows=1)
    for call in (
        lambda: model.generate("a"),
        lambda: model.chat(MESSAGES),
        lambda: model.session("a"),
        lambda: model.score("a b"),
        lambda: session.generate("a"),
        lambda: list(pieces),
        lambda: engine.submit("a").result(),
    ):
        with pytest.raises(KvcastError, match=CLOSED):
            call()
    engine.close()
    with pytest.raises(ClosedError):
        engine.submit("a")
