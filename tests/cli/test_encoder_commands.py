"""`kvcast embed` and `kvcast rerank`: JSON lines of what the models compute."""

import io
import json
import sys

import numpy as np
import pytest

import kvcast
from kit.random_encoders import CROSS_ENCODERS, ENCODERS, random_encoder, save_encoder
from kvcast.cli import main

TEXTS = ["w1 w2 w3", "w9 w8", "w20 w21 w22"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    return save_encoder(random_encoder(ENCODERS["bert"]), folder / "model")


@pytest.fixture(scope="module")
def ranker(tmp_path_factory):
    oracle = random_encoder(CROSS_ENCODERS["bert"], num_labels=1)
    return save_encoder(oracle, tmp_path_factory.mktemp("ranker") / "model", pooling=None)


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_line_has_a_texts_vector(encoder, capsys, monkeypatch):
    expected = kvcast.load(encoder).embed(TEXTS)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(TEXTS[1:])))
    assert main(["embed", "--model", str(encoder), TEXTS[0], "-"]) == 0
    given = lines(capsys)
    assert [(line["index"], line["text"]) for line in given] == list(enumerate(TEXTS))
    np.testing.assert_array_equal(np.float32([line["embedding"] for line in given]), expected)


def test_a_line_has_a_documents_relevance(ranker, capsys):
    expected = kvcast.load(ranker).rerank(TEXTS[0], TEXTS, top_n=2)
    assert main(["rerank", "--model", str(ranker), "--top-n", "2", TEXTS[0], *TEXTS]) == 0
    given = lines(capsys)
    assert given == [vars(one) | {"document": TEXTS[one.index]} for one in expected]


@pytest.mark.parametrize("command", ["generate", "export", "rerank"])
def test_other_commands_name_the_one_that_fits(command, encoder, tmp_path, capsys):
    words = {
        "generate": ["generate", "--model", str(encoder), "w1"],
        "export": ["export", str(encoder), "-o", str(tmp_path / "out")],
        "rerank": ["rerank", "--model", str(encoder), "w1", "w2"],
    }
    assert main(words[command]) != 0
    errors = capsys.readouterr().err.splitlines()
    assert "kvcast embed" in errors[-1]
