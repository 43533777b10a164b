"""Moonshine tiny as moonshine-voice packages it, real weights: what ONNX Runtime computes.

Both have the same codes. Its graphs round activations to 8 bits as well, a scale for each tensor.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import kvcast
from kit.models import encoded, in_chunks
from kit.published import fetch
from kit.recordings import EXAMPLE, read
from kvcast.families.moonshine import source_of

pytestmark = pytest.mark.slow
ASSETS = Path("moonshine_voice/assets")
DIGESTS = {
    "tiny-en/decoder_model_merged.ort": (
        "cf524c4862d36e9e5ab032eddc73637efd822d70e868ac575cf1a46e1e4708a0"
    ),
    "tiny-en/encoder_model.ort": "94e90a4654fc45cdfedb77c4c08e1739f48862998e58fada384b25118134f221",
    "tiny-en/tokenizer.bin": "6884b35fd6377d4c4d32336a0bc152f36b64d1e45b6503683cdc238250a8472d",
    "beckett.wav": "e5a26b3d29e5b0bc8dbd72c11d16a3808a4ec0ac45b21f12a27d2a2fe5c5ae61",
}
START, END = 1, 2
SECOND = 16_000


@pytest.fixture(scope="module")
def assets() -> Path:
    digests = {str(ASSETS / name): digest for name, digest in DIGESTS.items()}
    return fetch("moonshine-voice", "0.0.49", digests) / ASSETS


@pytest.fixture(scope="module")
def model(assets: Path) -> Any:
    return kvcast.load(assets / "tiny-en", quantize="none")


class Graphs:
    def __init__(self, folder: Path) -> None:
        names = ("encoder_model.ort", "decoder_model_merged.ort")
        self._encoder, self._decoder = (
            onnxruntime.InferenceSession(str(folder / name)) for name in names
        )

    def encode(self, samples: Any) -> Any:
        mask = np.ones((1, len(samples)), np.int64)
        given = {"input_values": samples[None], "attention_mask": mask}
        [states] = self._encoder.run(None, given)
        return states

    def logits(self, states: Any, samples: Any, tokens: list[int]) -> Any:
        """Return logits [tokens, vocabulary] of a decoder that starts without a cache."""
        given = {
            "encoder_hidden_states": states,
            "encoder_attention_mask": np.ones((1, len(samples)), np.int64),
            "input_ids": np.array([tokens]),
            "use_cache_branch": np.array([False]),
        }
        for value in self._decoder.get_inputs():
            if value.name.startswith("past_key_values"):
                _, heads, _, width = value.shape
                given[value.name] = np.zeros((1, heads, 0, width), np.float32)
        return self._decoder.run(["logits"], given)[0][0]

    def greedy(self, samples: Any) -> list[int]:
        states, tokens = self.encode(samples), [START]
        while len(tokens) < 194 and tokens[-1] != END:
            tokens.append(int(self.logits(states, samples, tokens)[-1].argmax()))
        return tokens[1:-1]


@pytest.fixture(scope="module")
def graphs(assets: Path) -> Graphs:
    return Graphs(assets / "tiny-en")


@pytest.fixture(scope="module")
def recordings(assets: Path) -> dict[str, Any]:
    novel = read(EXAMPLE)
    return {
        "beckett": read(assets / "beckett.wav"),
        "first sentence": novel[: 7 * SECOND],
        "whole": novel,
    }


def test_its_head_is_its_embedding(model):
    assert model.dimensions.tied


@pytest.mark.parametrize("name", ["beckett", "first sentence", "whole"])
def test_a_transcript_has_the_graphs_tokens(model, graphs, recordings, name):
    samples = recordings[name]
    [segment] = model.transcribe(samples)
    print(segment.text)
    assert list(segment.tokens) == graphs.greedy(samples)


@pytest.mark.parametrize("name", ["beckett", "whole"])
def test_logits_are_the_graphs_but_for_their_rounding(model, graphs, recordings, name):
    samples = recordings[name]
    [segment] = model.transcribe(samples)
    tokens = [START, *segment.tokens]
    expected = graphs.logits(graphs.encode(samples), samples, tokens)
    source = source_of(model.dimensions, [samples])
    cache = encoded(model.runtime, source, 1, len(tokens))
    [actual] = in_chunks(model.runtime, cache, np.array([tokens]), (len(tokens),))
    error = float(np.std(actual - expected) / np.std(expected))
    print(f"{name}: error {error:.4f} of the logits' deviation")
    assert error < 0.1
    alike = actual.argmax(-1) == expected.argmax(-1)
    assert alike.mean() > 0.95


def test_int8_says_what_was_said(assets, recordings):
    small = kvcast.load(assets / "tiny-en")
    said = "Ever tried, ever failed, no matter, try again, fail again, fail better."
    assert small.transcribe(recordings["beckett"]).text.strip() == said
