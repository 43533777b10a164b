"""Outputs that an export records are read back, and others are refused."""

import json

import numpy as np
import pytest

from kit.dimensions import LLAMA
from kvcast.errors import KvcastError
from kvcast.families.table import family_with
from kvcast.loading.export_proof import KEY, log_sum_exp, read_record, record_of
from kvcast.verification.cases import cases_of
from kvcast.verification.references import RecordedOracle

STEPS = 5
GENERATOR = np.random.default_rng(0)
WRITTEN = GENERATOR.integers(0, LLAMA.vocab_size, (2, STEPS))
WHOLE, STEPPED = GENERATOR.normal(size=(2, 2, STEPS, LLAMA.vocab_size)).astype(np.float32)
PROBE = family_with(LLAMA).probe(LLAMA)
RECORD = json.loads(json.dumps(record_of(PROBE, WRITTEN, STEPPED, WHOLE)))


def test_the_largest_logits_are_kept():
    known = read_record({KEY: RECORD}, LLAMA)
    np.testing.assert_array_equal(known.generated_rs, WRITTEN)
    for top, logits in ((known.reference, WHOLE), (known.exported, STEPPED)):
        ordered = np.sort(logits, axis=-1)[..., ::-1]
        np.testing.assert_allclose(top.logits_rsk, ordered[..., :8], rtol=1e-6)
        taken = np.take_along_axis(logits, top.tokens_rsk, axis=-1)
        np.testing.assert_allclose(top.logits_rsk, taken, rtol=1e-6)
        exact = np.log(np.exp(logits.astype(np.float64)).sum(axis=-1))
        np.testing.assert_allclose(top.sums_rs, exact, rtol=1e-6)
    np.testing.assert_allclose(log_sum_exp(np.float32([1e30, 1e30])), 1e30)
    assert read_record({"tokens": 10}, LLAMA) is None


@pytest.mark.parametrize("prompts", [None, [[1, 2], [3, 4]]])
def test_what_was_recorded_of_another_probe_is_not_compared(prompts):
    assert read_record({KEY: {**RECORD, "prompts": prompts}}, LLAMA) is None


def test_nothing_after_the_end_of_a_text_is_compared():
    end = int(WRITTEN[0, 2])
    texts = RecordedOracle(read_record({KEY: RECORD}, LLAMA), cases_of(PROBE), end).texts
    np.testing.assert_array_equal(texts[0].generated_n, WRITTEN[0, :2])
    np.testing.assert_array_equal(texts[1].generated_n, WRITTEN[1, :-1])


@pytest.mark.parametrize(
    "change",
    [
        {"written": [[1] * STEPS]},
        {"written": [[LLAMA.vocab_size] * STEPS] * 2},
        {"written": [[-1] * STEPS] * 2},
        {"written": "none"},
        {"written": [[1] * STEPS, [1]]},
        {"deviation": 0},
        {"deviation": float("nan")},
        {"exported": {**RECORD["exported"], "log_sum_exps": [[0.0]]}},
        {"exported": {**RECORD["exported"], "logits": [[["x"] * 8] * STEPS] * 2}},
        {"reference": None},
    ],
)
def test_what_no_export_wrote_is_refused(change):
    with pytest.raises(KvcastError, match="records outputs that no export wrote"):
        read_record({KEY: {**RECORD, **change}}, LLAMA)
