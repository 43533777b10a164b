"""The proof of a UniLM's bundle: it passes the model's own and refuses another's."""

from dataclasses import replace

import pytest

from kit.dimensions import ROFORMER, UNILMS
from kit.models import checkpoint_of, opened, random_programs
from kvcast.errors import KvcastError
from kvcast.loading.export_proof import prove
from kvcast.runtimes.native.library import PLAIN
from kvcast.runtimes.reference import EagerReference, NativeReference


@pytest.mark.parametrize(
    "dimensions",
    [
        ROFORMER,
        *(
            pytest.param(dimensions, marks=pytest.mark.slow)
            for dimensions in UNILMS
            if dimensions != ROFORMER
        ),
    ],
    ids=lambda dimensions: dimensions.architecture,
)
def test_a_bundle_gives_what_its_model_gives(dimensions):
    reference = NativeReference(checkpoint_of(random_programs(dimensions)), PLAIN)
    record = prove(opened(dimensions), reference, exact=True)
    assert record["tokens_equal"] == record["tokens"] == 56
    assert record["max_logit_error"] < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("positions", "tokens"), [(16, 30), (40, 56)])
@pytest.mark.parametrize("dimensions", UNILMS[1:], ids=lambda dimensions: dimensions.architecture)
def test_a_model_of_few_positions_is_proven_within_them(dimensions, positions, tokens):
    dimensions = replace(dimensions, max_positions=positions)
    record = prove(opened(dimensions), EagerReference(random_programs(dimensions)), exact=True)
    assert record["tokens_equal"] == record["tokens"] == tokens


def test_another_models_bundle_is_refused():
    other = random_programs(ROFORMER, seed=1)
    with pytest.raises(KvcastError, match="the exported graphs differ from the model"):
        prove(opened(ROFORMER), EagerReference(other), exact=True)
