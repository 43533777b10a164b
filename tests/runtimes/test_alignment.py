"""Scores of the alignment heads are openai-whisper's, on every runtime."""

from typing import Any

import numpy as np
import pytest

from kit.dimensions import SHALLOW, SMALL, SMALL_T5
from kit.marks import slow
from kit.models import (
    encoded,
    int8_cross_caches,
    open_folder,
    opened,
    random_programs,
    random_tokens,
    speech,
    stepped,
    text,
)
from kit.openai_whisper import centred, openai_attention
from kvcast.errors import KvcastError
from kvcast.runtimes.base import EncoderDecoder, Float32, Int64, TokenProbabilityQuery

TOLERANCE = 1e-3
RUNTIMES = {
    "eager": (SMALL, "eager"),
    "onnx": (SMALL, "onnx"),
    "aoti": (SHALLOW, "aoti"),
    "executorch": (SHALLOW, "executorch"),
    "native": (SMALL, "native"),
}


SLOW = {"aoti", "executorch"}  # exporting takes long


@pytest.fixture(params=[slow(name) if name in SLOW else name for name in RUNTIMES])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def runtime(name: str) -> EncoderDecoder:
    dimensions, runtime = RUNTIMES[name]
    return opened(dimensions, runtime=runtime)


def openais(name: str, features_mt: Float32, tokens_s: Int64) -> tuple[Float32, Float32]:
    return openai_attention(random_programs(RUNTIMES[name][0]), features_mt, tokens_s)


def asked(name: str, tokens_s: Int64) -> TokenProbabilityQuery:
    """Every token but the first, among two thirds of the vocabulary and themselves."""
    vocab_v = np.arange(RUNTIMES[name][0].vocab_size)
    among_v = np.where((vocab_v % 3 > 0) | np.isin(vocab_v, tokens_s), 0, -np.inf)
    return TokenProbabilityQuery(range(len(tokens_s) - 1), tokens_s[1:], among_v.astype(np.float32))


def assert_as_openai(name: str, alignment: Any, features_mt: Float32, tokens_s: Int64) -> None:
    """Probabilities are those of `asked`."""
    scores_hst, logits_sv = openais(name, features_mt, tokens_s)
    assert np.ptp(scores_hst) > 1
    assert alignment.scores_hst.dtype == np.float32
    assert alignment.scores_hst.shape == scores_hst.shape
    np.testing.assert_allclose(centred(alignment.scores_hst), centred(scores_hst), atol=TOLERANCE)
    sought = asked(name, tokens_s)
    weights_pv = np.exp(logits_sv[:-1] + sought.among_v)
    expected_p = weights_pv[sought.positions, sought.tokens_p] / weights_pv.sum(axis=1)
    np.testing.assert_allclose(alignment.probabilities_p, expected_p, rtol=TOLERANCE)


def test_scores_and_logits_of_two_inputs_after_one_another(name: str, runtime: EncoderDecoder):
    """20 tokens are more than a step's program of AOTInductor takes, and 12 are not."""
    cache = None
    for seed, new in ((1, 20), (2, 12)):
        source, (tokens_s,) = speech(1, seed), random_tokens(1, new, seed)
        if cache is None:
            cache = encoded(runtime, source)
        else:
            cache = runtime.encode(runtime.reset(cache, [0]), [0], *source)
            cache = runtime.reset(cache, [0], [0])
        alignment = runtime.align(tokens_s, cache, 0, asked(name, tokens_s))
        assert_as_openai(name, alignment, source[0][0], tokens_s)
        assert cache.lengths.tolist() == [0]


def test_a_row_is_aligned_while_beams_of_other_inputs_go_on(name: str, runtime: EncoderDecoder):
    """Rows 1 and 3 write; row 2 reads what row 0 had read."""
    source, given = speech(2, 3), random_tokens(2, 8, seed=4)
    other, (tokens_s,) = given[:, ::-1].copy(), random_tokens(1, 9, seed=5)
    cache = runtime.encode(runtime.new_cache(4, 32, inputs=2), [0, 1], *source)
    cache = runtime.reset(cache, [0, 1, 2, 3], [1, 0, 1, 0])
    _, undisturbed = stepped(runtime, cache, given[:, :4], [1, 3])
    expected, _ = stepped(runtime, undisturbed, given[:, 4:], [1, 3])
    cache = runtime.reset(undisturbed, [0, 1, 2, 3], [1, 0, 1, 0])
    _, cache = stepped(runtime, cache, other[:1, :3], [0])
    _, cache = stepped(runtime, cache, given[:, :4], [1, 3])
    alignment = runtime.align(tokens_s, cache, 2, asked(name, tokens_s))
    assert_as_openai(name, alignment, source[0][1], tokens_s)
    continued, cache = stepped(runtime, cache, given[:, 4:], [1, 3])
    np.testing.assert_allclose(continued, expected, atol=TOLERANCE)
    assert cache.lengths.tolist() == [3, 8, 0, 8]


def test_tokens_after_others_are_aligned_as_all_of_them(name: str, runtime: EncoderDecoder):
    source, (tokens_s,) = speech(1, 6), random_tokens(1, 10, seed=7)
    whole = runtime.align(tokens_s, encoded(runtime, source), 0, asked(name, tokens_s))
    _, cache = runtime.decode([tokens_s[:4]], encoded(runtime, source))
    among = TokenProbabilityQuery(range(5), tokens_s[5:], asked(name, tokens_s).among_v)
    rest = runtime.align(tokens_s[4:], cache, 0, among)
    np.testing.assert_allclose(rest.scores_hst, whole.scores_hst[:, 4:], atol=TOLERANCE)
    np.testing.assert_allclose(rest.probabilities_p, whole.probabilities_p[4:], rtol=TOLERANCE)


def test_scores_are_eagers_as_they_are(name: str, runtime: EncoderDecoder):
    """What openai-whisper's keys lack is here, too."""
    source, (tokens_s,) = speech(1, 8), random_tokens(1, 7, seed=9)
    eager = opened(RUNTIMES[name][0], runtime="eager")
    scores = [
        candidate.align(tokens_s, encoded(candidate, source), 0).scores_hst
        for candidate in (runtime, eager)
    ]
    np.testing.assert_allclose(*scores, atol=TOLERANCE)


def test_int8_keys_give_their_channels_back():
    """Only cross caches are int8 here, of inputs whose channels differ, in slots apart."""
    runtime, eager = open_folder(int8_cross_caches()), opened(SMALL, runtime="eager")
    features = speech(3, 10)[0] * np.array([0.05, 1, 10], np.float32)[:, None, None]
    (tokens_s,) = random_tokens(1, 12, seed=11)
    cache = runtime.new_cache(3, 32, inputs=3)
    for slots in ([2], [0, 1]):
        cache = runtime.encode(cache, slots, features[slots])
    cache = runtime.reset(cache, range(3), [2, 0, 1])
    for row, slot in ((0, 2), (1, 0), (2, 1)):
        expected = eager.align(tokens_s, encoded(eager, (features[[slot]],)), 0).scores_hst
        scores = runtime.align(tokens_s, cache, row).scores_hst
        error = np.abs(centred(scores) - centred(expected)).max()
        assert 0 < error < 0.02 * np.ptp(expected)


def test_a_quantised_models_scores_are_close():
    source, (tokens_s,) = speech(1, 12), random_tokens(1, 12, seed=13)
    quantised, eager = (opened(SMALL, "int8"), opened(SMALL, runtime="eager"))
    scores, expected = (
        candidate.align(tokens_s, encoded(candidate, source), 0).scores_hst
        for candidate in (quantised, eager)
    )
    assert 1e-3 < np.abs(scores - expected).max() < 0.1 * np.ptp(expected)


def test_tokens_that_do_not_fit_are_refused(runtime: EncoderDecoder):
    cache = encoded(runtime, speech(1, 14))
    with pytest.raises(KvcastError, match="holds 32 positions"):
        runtime.align(random_tokens(1, 33, seed=15)[0], cache, 0)


def test_a_row_that_reads_nothing_is_refused(runtime: EncoderDecoder):
    cache = runtime.reset(encoded(runtime, speech(1, 16)), [0])
    with pytest.raises(ValueError, match="row 0 reads no input"):
        runtime.align(np.array([1]), cache, 0)


@pytest.mark.parametrize("runtime", ["eager", "onnx"])
def test_a_t5_has_no_alignment_heads(runtime: str):
    t5 = opened(SMALL_T5, runtime=runtime)
    with pytest.raises(ValueError, match="no alignment heads"):
        t5.align(np.array([1]), encoded(t5, text(1, 17)), 0)
