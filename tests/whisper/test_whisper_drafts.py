"""Drafts change no transcript; unsuitable drafts are refused."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_window_decoder_equals_openai import VOCAB, our_tokenizer, speech

import kvcast
from kit.marks import slow, soak
from kit.recordings import Load, Samples
from kit.scripted_runtimes import ScriptedRuntime, windows
from kit.scripted_whisper import scripted_model
from kvcast.checkpoints.source import locate, open_checkpoint
from kvcast.decoding import drafters
from kvcast.decoding.drafters import ModelDrafting
from kvcast.decoding.speculative_decoding import Ledger, Speculations
from kvcast.errors import UsageError
from kvcast.families.whisper import WHISPER
from kvcast.whisper.decoding import DecodingOptions
from kvcast.whisper.windows import WindowDecoder
from kvcast_bench.writing.huggingface import write_huggingface


def shallower(model: str, layers: int, folder: Path) -> Path:
    """Write a packaged model with only so many of its decoder's layers."""
    checkpoint: Any = open_checkpoint(locate(model))
    assert checkpoint.family.name == "whisper"
    dimensions = replace(checkpoint.dimensions, decoder_layers=layers, alignment_heads=())
    tensors = {name: checkpoint.tensors[name] for name in WHISPER.tensor_shapes(dimensions)}
    generation = {
        name: value for name, value in checkpoint.generation.items() if name != "alignment_heads"
    }
    changed = {"dimensions": dimensions, "tensors": tensors, "generation": generation}
    write_huggingface(replace(checkpoint, **changed), folder)
    return folder


def said(segments: Iterable[kvcast.Segment]) -> list[tuple[float, float, tuple[int, ...]]]:
    """Return all but probabilities, which differ in their last digits."""
    return [(segment.start, segment.end, segment.tokens) for segment in segments]


@pytest.mark.parametrize(
    ("name", "draft"),
    [
        slow("two windows", "int8"),
        slow("german", "ngram"),
        soak("two windows", "four layers of six"),
        soak("two windows", "ngram"),
        soak("german", "int8"),
    ],
)
def test_a_recording_is_the_same_with_drafts(name, draft, load, recordings, tmp_path, monkeypatch):
    # Checked whether that pays or not.
    monkeypatch.setattr(Ledger, "affordable", lambda _ledger, _kind, most: min(most, 5))
    monkeypatch.setattr(Ledger, "can_begin", lambda _ledger: True)
    model = load("demo-base", quantize="none")
    drafters = {
        "int8": lambda: load("demo-base"),
        "four layers of six": lambda: kvcast.load(
            shallower("demo-base", 4, tmp_path / "four"), runtime="eager", threads=1
        ),
        "ngram": lambda: "ngram",
    }
    drafted = model.transcribe(recordings[name], draft=drafters[draft]())
    assert said(drafted) == said(model.transcribe(recordings[name]))
    counts = drafted.draft
    assert counts is not None
    print(f"{name}: {counts.accepted} of {counts.proposed} drafted tokens accepted")
    assert counts.proposed > 0
    if draft == "int8":
        assert counts.accepted > counts.proposed / 2 > 20


@pytest.mark.slow
def test_the_packaged_models_do_not_pair(load: Load, recordings: dict[str, Samples]):
    with pytest.raises(UsageError, match="draft has another vocabulary than this model"):
        load("demo-base").transcribe(recordings["004"], draft=load("demo"))


def test_unsuitable_drafts_are_refused_before_the_recording_is_opened():
    model = scripted_model()
    del model.decoder
    for draft, reason in (
        ("demo", r"draft must be ngram, or a model that kvcast\.load returned"),
        (7, r"draft must be ngram, or a model that kvcast\.load returned, not 7"),
    ):
        with pytest.raises(UsageError, match=reason):
            model.transcribe("missing.wav", draft=draft)
    other = scripted_model()
    other.dimensions = replace(other.dimensions, n_mels=128)
    with pytest.raises(UsageError, match=r"draft is a Whisper \(128 mels\) model and this one is"):
        model.transcribe("missing.wav", draft=other)
    with pytest.raises(UsageError, match="draft needs a beam of 1"):
        model.transcribe("missing.wav", draft="ngram", beam=5)


@pytest.mark.parametrize("drafter", [0, 1], ids=["itself", "another"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"language": "en", "timestamps": False, "max_new_tokens": 9},
        {"language": "en", "no_repeat_ngram": 1, "repetition_penalty": 1.2},
        {"language": "en", "temperature": 0.3, "best_of": 1},
    ],
    ids=str,
)
def test_drafts_change_no_window(options: dict[str, Any], drafter: int, monkeypatch):
    monkeypatch.setattr(Ledger, "affordable", lambda _ledger, _kind, most: min(most, 4))
    monkeypatch.setattr(Ledger, "can_begin", lambda _ledger: True)
    monkeypatch.setattr(drafters, "SURE", 0.0)
    asked = DecodingOptions(**{"max_new_tokens": 24, **options})
    smaller = ScriptedRuntime(speech(True, drafter))
    drafting = ModelDrafting(smaller, longest=448, vocabulary=VOCAB[True])
    results = []
    for speculations in (None, Speculations(drafting)):
        decoder = WindowDecoder(
            ScriptedRuntime(speech(True, 0)), our_tokenizer(True), 448, speculations=speculations
        )
        results.append(decoder.decode(windows(1, 2, 3), asked, prompt=[7, 8, 9]))
    plain, drafted = results
    counts = [result.draft for result in drafted]
    assert all(result.draft is None for result in plain)
    assert [replace(result, draft=None) for result in drafted] == plain
    proposed, accepted = (
        sum(getattr(count, name) for count in counts) for name in ("proposed", "accepted")
    )
    assert proposed > 0
    assert len(smaller.encoded) == 3
    if drafter == 0 and asked.temperature == 0:
        # At the end more may be drafted than is said.
        assert accepted > proposed - 3 * 5


def test_several_rows_take_no_drafts():
    drafting = ModelDrafting(ScriptedRuntime(speech(True, 0)), longest=448, vocabulary=VOCAB[True])
    decoder = WindowDecoder(
        ScriptedRuntime(speech(True, 0)),
        our_tokenizer(True),
        448,
        rows=3,
        speculations=Speculations(drafting),
    )
    asked = DecodingOptions(language="en", beam=3, max_new_tokens=4)
    [result] = decoder.decode(windows(1), asked)
    assert result.draft is None
