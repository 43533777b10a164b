"""JSON of requests: invalid documents are refused, expensive ones before they are parsed."""

import json
from typing import Any

import pytest

from kvcast.server import request_bodies
from kvcast.server.request_bodies import DEEPEST, MOST_NAMES, MOST_NESTED, MOST_VALUES, parsed


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, 2.5, -1e300, true, null, "\\ud83d\\ude00 \\u00e9 \\\\ud800"]}',
        '"😀"',
        '"NaN"',
        deep(DEEPEST),
        "[" + ",".join(["{}"] * 1000) + "]",
    ],
)
def test_a_document_is_parsed_as_by_json(text: str):
    assert parsed(text) == parsed(text.encode()) == json.loads(text)


WRONG = {
    "half of a surrogate pair": [
        b'"\\ud800"',
        b'{"\\uDFFF": 1}',
        b'[["\\ude00\\ud83d"]]',
        b'"\\\\\\ud800"',
    ],
    "not finite": [b"NaN", b'{"a": -Infinity}', b"[1e400]", b"-1e400"],
    "not JSON in UTF-8": [b'"\xed\xa0\x80"', b"\xff", b'{"a": "\xe9"}'],
    "is not JSON": [b"", b"{", b"1 2", b"'a'", b"1" * 5000],
    "nested deeper": [
        deep(DEEPEST + 2).encode(),
        b"[" * 50_000,
        b'{"a":' * 300 + b"1" + b"}" * 300,
    ],
    "lists and objects": [b"[]," * (MOST_NESTED + 1)],
    "values": [b"1," * (MOST_VALUES + 1)],
    "names": [b'{"a":1' + b',"a":1' * MOST_NAMES + b"}"],
}


@pytest.mark.parametrize(
    ("said", "content"), [(s, c) for s, several in WRONG.items() for c in several]
)
def test_invalid_json_is_refused_in_one_line(said: str, content: bytes):
    with pytest.raises(ValueError, match=said) as refused:
        parsed(content)
    assert "\n" not in str(refused.value)


def test_expensive_documents_are_refused_unparsed(monkeypatch: pytest.MonkeyPatch):
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(request_bodies.json, "loads", never)
    for content in (b"[[1]" + b",[1]" * MOST_NESTED, b"[1" + b",1" * (MOST_VALUES + 1)):
        with pytest.raises(ValueError, match="more than"):
            parsed(content)
