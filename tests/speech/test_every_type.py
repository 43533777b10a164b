"""Every type of models of speech, as a user meets it: options, files, folders, formats, the server.

Weights are random: texts say nothing, but whichever way a recording goes, its text is the same.
"""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

import kvcast
from kit.adapters import add_to, factors, product, write_peft
from kit.recordings import SPEECH, speech_folder
from kvcast.cli import main
from kvcast.errors import UsageError
from kvcast.loading.catalogue import catalogue
from kvcast.speech.abilities import ABILITIES, LanguageSource
from kvcast.speech.model import TAKEN, check
from kvcast.speech.params import LiveParams, TranscribeParams
from server.serving import Server, serving

RATE = 16_000
FEW = ("--max-new-tokens", "6")
"""Texts of random weights end late, but those of transducers by themselves."""


def noise(seconds: float, seed: int = 0) -> Any:
    samples = np.random.default_rng(seed).normal(0, 0.1, round(RATE * seconds))
    return (np.round(samples * 32768) / 32768).astype(np.float32)


def told(kind: str) -> dict[str, Any]:
    """Return the language, if the model has to be told it."""
    return {"language": "de"} if ABILITIES[kind].language is LanguageSource.REQUIRED else {}


def test_every_type_has_abilities_and_is_tried():
    listening = {
        kind.name
        for family in catalogue().families
        for kind in family.types
        if family.task == "transcribe"
    }
    assert set(ABILITIES) == listening == {"whisper", *SPEECH}


ASKED: dict[str, Any] = {
    "hints": {"initial_prompt": "Ahab"},
    "translates": {"task": "translate"},
    "words": {"word_timestamps": True},
    "follows_languages": {"multilingual": True},
}


@pytest.mark.parametrize("kind", ABILITIES)
def test_options_are_taken_by_models_that_can_and_refused_in_one_line(kind: str):
    can = ABILITIES[kind]
    for ability, options in ASKED.items():
        params = TranscribeParams(**options)
        if getattr(can, ability):
            check(params, TAKEN | can.options)
        else:
            refused = f"{next(iter(options))} is not supported"
            with pytest.raises(UsageError, match=refused) as error:
                check(params, TAKEN | can.options)
            assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def parakeet(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = speech_folder("parakeet_tdt", tmp_path_factory.mktemp("models") / "parakeet")
    return kvcast.load(folder, runtime="native", quantize="none", threads=1)


def test_channels_are_told_apart_by_a_model_that_has_times_of_words(parakeet: Any, tmp_path: Path):
    sides = [noise(2.0, 1), noise(2.0, 2)]
    soundfile.write(tmp_path / "call.wav", np.stack(sides, 1), RATE)
    segments = list(parakeet.transcribe(tmp_path / "call.wav", channels="split"))
    assert {segment.channel for segment in segments} == {1, 2}
    for channel, samples in enumerate(sides, start=1):
        own = [each for each in segments if each.channel == channel]
        alone = list(parakeet.transcribe(samples))
        assert [(each.start, each.text) for each in own] == [
            (each.start, each.text) for each in alone
        ]
    assert [each.start for each in segments] == sorted(each.start for each in segments)
    with kvcast.Engine(parakeet, rows=1) as engine, pytest.raises(UsageError, match="channels"):
        engine.submit(sides[0], channels="split")


def test_what_a_model_does_not_do_is_said_as_it_is(parakeet: Any):
    for use, reason in (
        (lambda: parakeet.align(noise(1.0), "a"), "cannot align a given text"),
        (lambda: parakeet.detect_language(noise(1.0)), "does not detect the language"),
        (lambda: parakeet.live(), "does not support live"),
        (lambda: parakeet.transcribe(noise(1.0), multilingual=True), "multilingual"),
    ):
        with pytest.raises(UsageError, match=reason):
            use()


@pytest.fixture(scope="module", params=SPEECH)
def kind(request: Any) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speech_folder(kind, tmp_path_factory.mktemp("models") / kind)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return kvcast.load(folder, runtime="native", quantize="none", threads=1)


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sounds")
    soundfile.write(place / "a.wav", noise(1.5), RATE)
    soundfile.write(place / "stereo.flac", np.stack([noise(2.0, 1), noise(2.0, 2)], 1), 44_100)
    soundfile.write(place / "silent.wav", np.zeros(RATE, np.float32), RATE)
    (place / "empty.wav").write_bytes(b"")
    return place


def words(kind: str, folder: Path, *given: Any) -> list[str]:
    """Return the arguments of a transcription."""
    options = [] if kind.startswith("parakeet") else [*FEW]
    options += ["--language", "de"] if told(kind) else []
    own = ["--model", folder, "--runtime", "native", "--quantize", "none", "--threads", "1"]
    return ["transcribe", *map(str, (*given, *own, *options))]


def few(kind: str) -> dict[str, Any]:
    return told(kind) | ({} if kind.startswith("parakeet") else {"max_new_tokens": 6})


@pytest.mark.slow
def test_files_a_batch_and_a_folder_have_the_same_texts(
    kind: str, folder: Path, model: Any, sounds: Path, tmp_path: Path, capsys: Any
):
    names = ["a.wav", "stereo.flac", "silent.wav", "empty.wav"]
    expected = {
        name: "".join(segment.text for segment in model.transcribe(sounds / name, **few(kind)))
        for name in names[:3]
    }
    assert expected["a.wav"].strip()
    assert not expected["silent.wav"]
    for together in ([], ["--batch", "2"]):
        given = words(kind, folder, *(sounds / name for name in names), "--json", *together)
        assert main(given) == 3
        out, err = capsys.readouterr()
        documents = [json.loads(line) for line in out.splitlines()]
        told_by_name = {
            Path(each["source"]).name: "".join(part["text"] for part in each["segments"])
            for each in documents
        }
        assert told_by_name == expected
        assert sum("empty.wav" in line for line in err.splitlines()) == 1
    texts = tmp_path / "texts"
    assert main(words(kind, folder, sounds, "-o", texts, "-f", "all", "--quiet")) == 3
    for name, text in expected.items():
        document = json.loads((texts / name).with_suffix(".json").read_text())
        assert "".join(part["text"] for part in document["segments"]) == text
        subtitles = (texts / name).with_suffix(".vtt").read_text()
        assert subtitles.startswith("WEBVTT")
        assert ("-->" in subtitles) == bool(text)


@pytest.mark.slow
def test_times_of_words_are_given_or_refused(kind: str, folder: Path, sounds: Path, capsys: Any):
    given = words(kind, folder, sounds / "a.wav", "--format", "srt", "--max-words-per-line", "1")
    code = main(given)
    out, err = capsys.readouterr()
    if ABILITIES[kind].words:
        assert code == 0
        assert out.count("-->") == len(out.split("\n\n")) - 1
    else:
        assert (code, out) == (2, "")
        assert "it returns no word times" in err.splitlines()[-1]


@pytest.mark.slow
def test_live_is_heard_or_refused(kind: str, model: Any):
    if not ABILITIES[kind].live:
        with pytest.raises(UsageError, match="does not support live"):
            model.live()
        return
    window = model.streaming_window(LiveParams())
    window.append(noise(1.3))
    confirmed = window.finish_utterance(window.end)
    [whole] = model.transcribe(noise(1.3))
    assert tuple(token for word in confirmed for token in word.tokens) == whole.tokens


@pytest.fixture(scope="module")
def server(model: Any) -> Iterator[Server]:
    with serving({"ear": model}) as running:
        yield running


@pytest.mark.slow
def test_the_server_answers_whole_and_streamed(kind: str, model: Any, server: Server):
    can, client = ABILITIES[kind], server.client()
    file = io.BytesIO()
    soundfile.write(file, noise(1.5), RATE, format="WAV")
    segments = list(model.transcribe(noise(1.5), **told(kind)))
    text = "".join(segment.text for segment in segments).strip()

    def post(**form: Any) -> Any:
        return server.http().post(
            "/v1/audio/transcriptions",
            files={"file": ("a.wav", file.getvalue())},
            data={"model": "ear", **told(kind), **form},
        )

    whole = client.audio.transcriptions.create(
        model="ear", file=("a.wav", file.getvalue()), response_format="verbose_json", **told(kind)
    )
    assert (whole.text, whole.duration) == (text, 1.5)
    assert [segment.start for segment in whole.segments] == [each.start for each in segments]
    events = list(
        client.audio.transcriptions.create(
            model="ear", file=("a.wav", file.getvalue()), stream=True, **told(kind)
        )
    )
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert "".join(deltas) == events[-1].text == text
    assert post(response_format="srt").text.count("-->") == len(segments)
    for able, form in (
        (can.words, {"timestamp_granularities[]": "word", "response_format": "verbose_json"}),
        (can.hints, {"prompt": "Ahab"}),
        (can.hints, {"hotwords": "Ahab"}),
        (False, {"language": "la"}),
    ):
        answer = post(**form)
        assert answer.status_code == (200 if able else 400), answer.text
    entry = server.http().get("/v1/models/ear").json()
    assert entry["abilities"]["words"] == can.words
    assert entry["languages"] == list(model.languages)


@pytest.mark.slow
def test_an_adapter_changes_what_it_changes_in_transformers(
    kind: str, folder: Path, tmp_path: Path
):
    make, save = SPEECH[kind]
    theirs = make()
    heads = {"lm_head", "proj_out", "ctc_head"}  # of which some are the embedding
    pairs = {
        name: tuple(0.08 * factor for factor in factors(tuple(module.weight.shape), 2))
        for name, module in theirs.named_modules()
        if isinstance(module, torch.nn.Linear) and name not in heads
    }
    assert len(pairs) > 8
    adapter = write_peft(tmp_path / "adapter", pairs)
    add_to(theirs, {name: 1.5 * product(*pair) for name, pair in pairs.items()})
    merged = save(theirs, tmp_path / "merged")

    def texts(*adapters: str, base: Path = folder) -> list[Any]:
        given: dict[str, Any] = {"runtime": "native", "quantize": "none", "threads": 1}
        opened = kvcast.load(base, adapter=adapters, **given)
        return [
            (segment.tokens, pytest.approx(segment.avg_logprob, abs=1e-3))
            for segment in opened.transcribe(noise(1.5), **few(kind))
        ]

    expected = texts(base=merged)
    assert expected
    assert texts(str(adapter)) == expected
    assert expected != texts() == texts(f"{adapter}=0")


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_fewer_bits_transcribe(kind: str, folder: Path, quantize: str):
    model = kvcast.load(folder, runtime="native", quantize=quantize, threads=1)
    segments = list(model.transcribe(noise(1.5), **few(kind)))
    assert all(segment.tokens for segment in segments)


@pytest.mark.slow
def test_an_export_writes_the_same_and_other_runtimes_refuse_in_one_line(
    kind: str, folder: Path, model: Any, tmp_path: Path, capsys: Any
):
    def exported(runtime: str) -> int:
        given = ["-o", str(tmp_path / runtime), "--quantize", "none", "--quiet"]
        return main(["export", str(folder), "--runtime", runtime, *given])

    def heard(of: Any) -> list[Any]:
        return [(each.start, each.text) for each in of.transcribe(noise(1.5), **few(kind))]

    assert exported("native") == 0
    assert heard(kvcast.load(tmp_path / "native", threads=1)) == heard(model)
    capsys.readouterr()
    if kind == "voxtral":  # whose encoder is Whisper's
        assert exported("onnx") == 0
        assert heard(kvcast.load(tmp_path / "onnx", threads=1)) == heard(model)
    else:
        assert exported("onnx") == 2
        [line] = capsys.readouterr().err.splitlines()
        assert "use --runtime native" in line


@pytest.mark.slow
def test_a_recipe_is_found_on_speech_whose_language_is_told(tmp_path: Path, capsys: Any):
    folder = speech_folder("cohere_asr", tmp_path / "cohere")
    soundfile.write(tmp_path / "a.wav", noise(1.5), RATE)
    given = ["quantize", str(folder), "--on", str(tmp_path / "a.wav"), "--positions", "16"]
    assert main([*given, "--quiet"]) == 2
    assert "cannot detect the language" in capsys.readouterr().err
    recipe = tmp_path / "recipe.json"
    assert main([*given, "--language", "de", "--quiet", "-o", str(recipe)]) == 0
    model = kvcast.load(folder, quantize=str(recipe), threads=1)
    assert any(segment.text for segment in model.transcribe(noise(1.5), language="de"))
