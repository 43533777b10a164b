"""Views of attention: what is averaged, printed, drawn and put into JSON is what was computed."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import pytest

from kit.pixels import image, indexes, texts
from kit.recordings import EXAMPLE
from kvcast.cli import main
from kvcast.errors import KvcastError, UsageError
from kvcast.inspect.attention.model import (
    InspectedModel,
    RecordingRuntime,
    read_segment,
    spectrogram,
)
from kvcast.inspect.attention.picture import draw, palette, png
from kvcast.inspect.attention.view import (
    AttentionView,
    HeadChoice,
    Token,
    mean_weights,
    over_audio,
    over_text,
    render,
)
from kvcast.inspect.attention.weights import LayerWeights

SCHEMA = Path(__file__).parents[3] / "docs" / "attention.schema.json"
DATE = "12 June 2010"


def weights(*shape: int) -> np.ndarray:
    raw = np.random.default_rng(0).uniform(0, 1, shape).astype(np.float32)
    return raw / raw.sum(-1, keepdims=True)


def layers(*heads: int) -> list[LayerWeights]:
    return [
        LayerWeights(kind="self", layer=2 * i, weights_hst=weights(count, 3, 4), error=0.0)
        for i, count in enumerate(heads)
    ]


def view(rows: list[str], columns: list[str], **others: Any) -> AttentionView:
    given = {"weights_st": weights(len(rows), len(columns)), "over": "text", **others}
    return AttentionView(
        model="m",
        rows=[Token(id=i, text=text) for i, text in enumerate(rows)],
        columns=[Token(id=i, text=text) for i, text in enumerate(columns)],
        heads=[(0, 0)],
        error=1e-7,
        **given,
    )


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["inspect", "attention", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def failed(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    assert main(["inspect", "attention", *words]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.fixture(scope="module")
def dates() -> AttentionView:
    return over_text(InspectedModel.open("demo-t5", lambda _: None), DATE, None, None, None)


def test_heads_are_all_those_asked_for_or_the_usual_ones():
    of_two = layers(2, 2)

    def chosen(**choice: Any) -> Any:
        return mean_weights(of_two, HeadChoice(**choice)).heads

    assert chosen() == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert chosen(usual=[(2, 1)]) == [(2, 1)]
    assert chosen(layer=2, usual=[(0, 1)]) == [(2, 0), (2, 1)]
    assert chosen(head=1) == [(0, 1), (2, 1)]
    assert chosen(layer=0, head=1) == [(0, 1)]
    with pytest.raises(UsageError, match="no attention in layer 1: give one of 0, 2"):
        chosen(layer=1)
    with pytest.raises(UsageError, match="no head 2: give one of 0 to 1"):
        chosen(head=2)
    mean = mean_weights(of_two, HeadChoice(usual=[(0, 1), (2, 0)]))
    expected_st = (of_two[0].weights_hst[1] + of_two[1].weights_hst[0]) / 2
    np.testing.assert_allclose(mean.weights_st, expected_st, atol=1e-7)


@pytest.mark.parametrize("error", [0.01, float("nan")])
def test_weights_that_are_not_the_layers_own_are_refused(error: float):
    [first, second] = layers(2, 2)
    with pytest.raises(KvcastError, match="differ from the layer's own result"):
        mean_weights([first, replace(second, error=error)], HeadChoice(layer=0))


def test_what_a_row_was_fed_is_kept_until_it_is_emptied_or_cut_back():
    class Silent:
        def encode(self, cache: Any, slots: Any, *source: Any) -> Any:
            return cache

        def prefill(self, tokens: Any, cache: Any) -> Any:
            return None, cache

        decode = prefill

    def held(count: int) -> Any:
        return SimpleNamespace(lengths=np.array([count], np.int32))

    recorded, sound = RecordingRuntime(Silent()), np.ones((1, 3), np.float32)
    recorded.encode(held(0), [0], sound)
    recorded.prefill([np.array([1, 2])], held(0))
    recorded.decode([np.array([3])], held(2))
    recorded.decode(np.array([[9]]), held(3))
    recorded.decode([np.array([4, 5])], held(3))
    sound *= 2
    recorded.encode(held(0), [0], sound)
    recorded.prefill([np.array([7])], held(0))
    recorded.prefill([np.array([8])], held(1))
    first, second = recorded.sequences
    assert (first.prompt, first.tokens) == (2, [1, 2, 3, 4, 5])
    assert (second.prompt, second.tokens) == (2, [7, 8])
    assert [each.source[0].tolist() for each in recorded.sequences] == [[[1] * 3], [[2] * 3]]


def test_a_png_holds_each_number_as_its_colour():
    shares_hw = np.array([[0, 0.5, 1], [0.25, 2, -1]], np.float32)
    found_hw, colours = indexes(png(shares_hw, palette("#ffffff", "#102030")))
    assert found_hw.tolist() == [[0, 128, 255], [64, 255, 0]]
    assert colours[0].tolist() == [255, 255, 255]
    assert colours[255].tolist() == [16, 32, 48]
    assert colours[128].tolist() == [135, 143, 151]


def test_an_answer_is_over_its_source(dates: AttentionView):
    assert "".join(token.text for token in dates.rows) == "2010-06-12"
    assert "".join(token.text for token in dates.columns[:-1]) == DATE
    assert dates.weights_st.shape == (10, 13)
    np.testing.assert_allclose(dates.weights_st.sum(1), 1, atol=1e-6)
    # The month's digits come from its name, the day's from the source's beginning.
    heaviest = [DATE[i] for i in dates.weights_st.argmax(1)[5:]]
    assert heaviest[0] == heaviest[1] == "J"
    assert heaviest[3:] == ["1", "2"]


def test_the_picture_shows_the_weights(dates: AttentionView):
    svg = draw(dates)
    expected_st = np.sqrt(dates.weights_st / dates.weights_st.max()) * 255
    assert np.abs(image(svg, "weights") - expected_st).max() <= 0.5
    assert texts(svg, "q") == list("2010-06-12")
    assert "".join(texts(svg, None)[1:14]) == "12·June·2010<1>"


def test_the_picture_of_a_sound_has_its_spectrogram_and_times():
    seen = view(["a", "<&\x00b"], ["?"] * 50, over="sound").of_audio(0.02, 40)
    shares_mf = np.random.default_rng(1).uniform(0, 1, (80, 80)).astype(np.float32)
    svg = draw(seen, shares_mf)
    assert np.abs(image(svg, "sound")[::-1] - shares_mf * 255).max() <= 0.5
    assert image(svg, "weights").shape == (2, 40)
    assert texts(svg, "q") == ["a", "<&�b"]
    assert texts(svg, "t") == [f"{tick / 10:g} s" for tick in range(9)]


def test_the_json_object_has_every_weight(capsys: pytest.CaptureFixture[str], dates: AttentionView):
    shown = json.loads(printed(capsys, DATE, "--model", "demo-t5", "--json"))
    jsonschema.validate(shown, json.loads(SCHEMA.read_text(encoding="utf-8")))
    np.testing.assert_allclose(shown.pop("weights"), dates.weights_st, atol=1e-6)
    assert [token["text"] for token in shown.pop("rows")] == list("2010-06-12")
    assert shown.pop("columns")[2] == {"id": dates.columns[2].id, "text": " "}
    assert 0 < shown.pop("error") < 1e-5
    assert shown == {
        "format": "kvcast.inspect.attention",
        "version": 1,
        "model": "demo-t5",
        "over": "source",
        "heads": [[layer, head] for layer in range(2) for head in range(4)],
        "seconds_per_column": None,
    }


def test_a_line_of_text_names_the_heaviest_positions():
    of_two = np.array([[0.1, 0.2, 0.6, 0.1], [1, 0, 0, 0]], np.float32)
    lines = render(view(["x", '"'], ["a", "b", "c", "d"], weights_st=of_two)).splitlines()
    assert lines[3] == ' "x"  0.60 2:"c"  0.20 1:"b"  0.10 0:"a"'
    assert lines[4] == '"\\""  1.00 0:"a"'


def test_a_line_of_sound_tells_when_and_draws_the_course():
    course_st = np.zeros((1, 120), np.float32)
    course_st[0, [50, 51]] = 0.7, 0.2
    course_st[0, 99] = 0.1
    seen = replace(view(["x"], ["?"], over="sound"), weights_st=course_st).of_audio(0.02, 120)
    *_, line = render(seen).splitlines()
    assert line == '"x"    1.01 s  |' + " " * 25 + "@" + " " * 23 + "." + " " * 10 + "|"


def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    t5 = ("--model", "demo-t5")
    assert "--start is for audio" in failed(capsys, 2, DATE, *t5, "--start", "1")
    assert "no head 4: give one of 0 to 3" in failed(capsys, 2, DATE, *t5, "--head", "4")
    assert "no attention in layer 9" in failed(capsys, 2, DATE, *t5, "--layer", "9")
    assert "--model is missing" in failed(capsys, 2, DATE)
    assert "no model 'nothing'" in failed(capsys, 66, DATE, "--model", "nothing")
    assert "cannot write" in failed(capsys, 74, DATE, *t5, "--svg", str(tmp_path))
    (tmp_path / "bundle.json").write_text("{}")
    assert "give the checkpoint" in failed(capsys, 2, DATE, "--model", str(tmp_path))
    monkeypatch.setattr("kvcast.inspect.attention.view.MOST_POSITIONS", 9)
    assert "11 tokens are too many to show (at most 9)" in failed(capsys, 2, DATE, *t5)


@pytest.mark.slow
def test_tokens_of_speech_attend_to_where_they_are_spoken(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    """The packaged Whisper, whose words have times of their own from the same heads."""
    model = InspectedModel.open("demo", lambda _: None)
    samples = read_segment(str(EXAMPLE), 0, 30)
    seen = over_audio(model, samples, None, None, None)
    assert seen.weights_st.shape[1] == -(-len(samples) // 320)
    [*segments] = model.model.transcribe(samples, temperature=0.0, word_timestamps=True)
    words = [word for segment in segments for word in segment.words]
    spelled = [token.text.strip() for token in seen.rows]
    peaks = dict(zip(spelled, seen.weights_st.argmax(1) * seen.seconds, strict=True))
    once = [word for word in words if spelled.count(word.word.strip()) == 1]
    met = [word.start - 0.4 <= peaks[word.word.strip()] <= word.end + 0.4 for word in once]
    assert len(met) > 20
    assert np.mean(met) > 0.8  # by chance it would be a tenth
    svg = tmp_path / "speech.svg"
    given = (str(EXAMPLE), "--model", "demo", "--start", "5", "--svg", str(svg))
    table = printed(capsys, *given, "--layer", "2", "--head", "3")
    assert "layer 2, head 3" in table.splitlines()[0]
    later = spectrogram(read_segment(str(EXAMPLE), 5, 30))
    assert np.abs(image(svg.read_text(), "sound")[::-1] - later * 255).max() <= 0.5
    assert "has no audio at 99 s" in failed(capsys, 2, *given[:3], "--start", "99")
    assert "drop --new" in failed(capsys, 2, *given[:3], "--new", "9")
    assert failed(capsys, 66, "nothing.wav", *given[1:3])


@pytest.mark.slow
def test_a_text_attends_to_itself(capsys: pytest.CaptureFixture[str]):
    words = ("The cat sat on the mat. The cat", "--model", "demo-chat", "--new", "2", "--json")
    shown = json.loads(printed(capsys, *words))
    weights_st = np.array(shown["weights"])
    assert shown["over"] == "text"
    assert shown["rows"] == shown["columns"]
    assert "".join(token["text"] for token in shown["rows"]) == words[0] + " was happy"
    assert weights_st.shape == (len(shown["rows"]),) * 2
    np.testing.assert_allclose(weights_st.sum(1), 1, atol=1e-4)
    assert not np.triu(weights_st, 1).any()
    assert "the prompt is not valid UTF-8" in failed(capsys, 2, "\udcff", *words[1:3])


@pytest.mark.slow
def test_a_whisper_that_tells_the_language_first_shows_the_text(capsys: pytest.CaptureFixture[str]):
    given = (str(EXAMPLE), "--model", "demo-base", "--json")
    for told in ([], ["--language", "en"]):
        shown = json.loads(printed(capsys, *given, *told))
        text = "".join(token["text"] for token in shown["rows"])
        assert "John Dashwood had then leisure to consider" in text
        assert shown["seconds_per_column"] == 0.02
    assert "language" in failed(capsys, 2, *given[:3], "--language", "xx")
