"""The proof of a T5's bundle: it passes the model's own and refuses another's."""

from dataclasses import replace

import numpy as np
import pytest

from kit.dimensions import CROSS_BIASED_T5, SMALL_T5
from kit.models import opened, random_programs
from kvcast.errors import KvcastError
from kvcast.loading.export_proof import prove
from kvcast.runtimes.eager.runtime import EagerEncoderDecoder
from kvcast.runtimes.reference import EagerReference


@pytest.mark.parametrize(
    ("dimensions", "positions", "tokens"),
    [
        (SMALL_T5, 32, 56),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((SMALL_T5, 9, 18), (CROSS_BIASED_T5, 32, 56), (CROSS_BIASED_T5, 9, 18))
        ),
    ],
)
def test_a_bundle_gives_what_its_model_gives_within_its_positions(dimensions, positions, tokens):
    dimensions = replace(dimensions, target_positions=positions)
    record = prove(opened(dimensions), EagerReference(random_programs(dimensions)), exact=True)
    assert record["tokens_equal"] == record["tokens"] == tokens
    assert record["max_logit_error"] < 1e-3


def test_a_model_whose_weights_are_no_numbers_is_refused():
    programs = random_programs(SMALL_T5)
    programs.weights["decoder.norm.weight"][0] = np.nan
    with pytest.raises(KvcastError, match="the model's logits are not all finite"):
        prove(EagerEncoderDecoder(programs), EagerReference(programs), exact=False)


def test_a_candidate_that_gives_no_numbers_is_refused_whatever_it_promises():
    candidate = random_programs(SMALL_T5)
    candidate.weights["decoder.norm.weight"][0] = np.nan
    with pytest.raises(KvcastError, match="logits off by up to nan"):
        prove(
            EagerEncoderDecoder(candidate), EagerReference(random_programs(SMALL_T5)), exact=False
        )


def test_another_models_bundle_is_refused():
    other = random_programs(SMALL_T5, seed=1)
    with pytest.raises(KvcastError, match="the exported graphs differ from the model"):
        prove(opened(SMALL_T5), EagerReference(other), exact=True)
