"""Windows with drafts are those without: rules for timestamps, prompts and endings apply alike."""

from dataclasses import replace
from typing import Any

import pytest
from test_window_decoder_equals_openai import VOCAB, our_tokenizer, speech

from kit.scripted_runtimes import ScriptedRuntime, windows
from kvcast.decoding import drafters
from kvcast.decoding.drafters import ModelDrafting
from kvcast.decoding.speculative_decoding import Ledger, Speculations
from kvcast.whisper.decoding import DecodingOptions
from kvcast.whisper.windows import WindowDecoder


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
