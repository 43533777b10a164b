"""ONNX Runtime in fp32 equals eager PyTorch over whole decodes of real recordings."""

from itertools import product

import numpy as np
import pytest

import kvcast
from kit.marks import slow, soak
from kit.models import encoded
from kit.recordings import Samples
from kvcast.audio.features import open_features
from kvcast.runtimes.base import EncoderDecoder, Float32
from kvcast.whisper.decoding import DecodingOptions, DecodingResult
from kvcast.whisper.requests import Features

SEARCHES = {
    "greedy": DecodingOptions(),
    "beam 5": DecodingOptions(beam=5),
    "beam 5 without timestamps": DecodingOptions(beam=5, timestamps=False),
}

SLOW = [("004", "beam 5"), ("001", "greedy"), ("005", "beam 5 without timestamps")]


def first_window(samples: Samples) -> Float32:
    with open_features(samples, 80) as windows:
        return windows.window(0)[None]


def decoded(
    model: kvcast.WhisperModel, features_bmt: Float32, options: DecodingOptions
) -> DecodingResult:
    return model.decoder(options).decode([Features(features_bmt[0])], options)[0]


def forced(
    runtime: EncoderDecoder, features_bmt: Float32, prompt: list[int], tokens: tuple[int, ...]
) -> Float32:
    """Logits [1 + tokens, rows, vocab] step by step, five equal rows after the prompt."""
    cache = encoded(runtime, (features_bmt,), rows=5, capacity=len(prompt) + len(tokens))
    logits_11v, cache = runtime.decode([np.array(prompt)], cache, [0])
    steps = [np.repeat(logits_11v[:, 0], 5, axis=0)]
    cache = runtime.reorder(cache, [0] * 5)
    for token in tokens:
        logits_r1v, cache = runtime.decode([np.array([token])] * 5, cache)
        steps.append(logits_r1v[:, 0].copy())
    return np.stack(steps)


@pytest.mark.parametrize(
    ("recording", "search"),
    [
        *(slow(*case) for case in SLOW),
        *(
            soak(*case)
            for case in product(["001", "004", "005", "example"], SEARCHES)
            if case not in SLOW
        ),
    ],
)
def test_tokens_are_equal_and_their_logits_within_a_thousandth(recording, search, load, recordings):
    options = SEARCHES[search]
    onnx, eager = (load("demo", runtime=name, quantize="none") for name in ("onnx", "eager"))
    features_bmt = first_window(recordings[recording])
    by_onnx, by_eager = (decoded(model, features_bmt, options) for model in (onnx, eager))
    assert by_onnx.tokens == by_eager.tokens
    assert by_onnx.avg_logprob == pytest.approx(by_eager.avg_logprob, abs=1e-3)
    assert by_onnx.no_speech_prob == pytest.approx(by_eager.no_speech_prob, abs=1e-3)

    prompt = [*onnx.tokenizer.sot_sequence("en", "transcribe", timestamps=options.timestamps)]
    onnx_srv, eager_srv = (
        forced(model.runtime, features_bmt, prompt, by_eager.tokens) for model in (onnx, eager)
    )
    assert np.abs(onnx_srv - eager_srv).max() < 1e-3
    assert np.abs(onnx_srv - onnx_srv[:, :1]).max() < 1e-3  # equal rows, equal logits


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"runtime": "onnx", "quantize": "none"}, {"runtime": "onnx"}, {"runtime": "eager"}],
    ids=str,
)
def test_a_recording_after_another_is_transcribed_as_by_a_fresh_load(options, load, recordings):
    def transcript(model: kvcast.WhisperModel, recording: str) -> list[kvcast.Segment]:
        return list(model.transcribe(recordings[recording], beam=5, temperature=0.0))

    used = load("demo", **options)
    first = transcript(used, "example")
    after_another = transcript(used, "005")
    fresh = transcript(kvcast.load("demo", threads=1, **options), "005")
    assert after_another == fresh
    assert first != after_another
    assert transcript(used, "example") == first


@pytest.mark.slow
def test_windows_encoded_together_are_decoded_as_one_by_one(load, recordings):
    model = load("demo", runtime="onnx", quantize="none")
    windows = [first_window(recordings[name]) for name in ("example", "004", "005")]
    options = DecodingOptions(beam=3)
    decoder = model.decoder(options, windows=len(windows))
    together = decoder.decode([Features(window_1mt[0]) for window_1mt in windows], options)
    alone = [decoded(model, window_1mt, options) for window_1mt in windows]
    assert [result.tokens for result in together] == [result.tokens for result in alone]
    for ours, theirs in zip(together, alone, strict=True):
        assert ours.avg_logprob == pytest.approx(theirs.avg_logprob, abs=1e-3)
