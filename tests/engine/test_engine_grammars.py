"""Callers of one engine, each with a grammar of its own, or none."""

import json
import re

import pytest

from kit.text_models import model_of
from kvcast import Engine
from kvcast.errors import UsageError

SCHEMA = {"type": "array", "items": {"enum": [1, "é", None]}, "minItems": 2, "maxItems": 4}


def test_texts_of_an_engine_keep_their_grammars():
    model = model_of("byte-level")
    asked = [{"json_schema": SCHEMA}, {"regex": "[0-9]{3,9}"}, {"max_new_tokens": 5}] * 4
    with Engine(model, rows=4) as engine:
        with pytest.raises(UsageError, match="unclosed group"):
            engine.submit("a", regex="(a")
        jobs = [
            engine.submit("hello", temperature=1.0, seed=seed, **options)
            for seed, options in enumerate(asked)
        ]
        texts = [job.result(timeout=600).text for job in jobs]
    alone = [
        model.generate("hello", temperature=1.0, seed=seed, **options).text
        for seed, options in enumerate(asked)
    ]
    assert texts == alone
    for text in texts[::3]:
        assert 2 <= len(json.loads(text)) <= 4
    for text in texts[1::3]:
        assert re.fullmatch("[0-9]{3,9}", text)
