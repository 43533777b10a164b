"""What `kvcast doctor MODEL --prove` compares: a model of each family with the plain kernels."""

from typing import Any

import pytest

from kit.dimensions import DECODERS, ROFORMER, SMALL, SMALL_T5
from kit.models import lazy_tensors, random_tensors
from kvcast.checkpoints.base import Checkpoint
from kvcast.families.table import family_with
from kvcast.loading.examination import Source, _runtime, proof
from kvcast.runtimes.native import bundles
from kvcast.spec.runtimes import BundlePrecision

PRECISIONS = [BundlePrecision(quantize="none"), BundlePrecision(quantize="int8", cache="fp16")]
FAMILIES = [SMALL, SMALL_T5, DECODERS[0], ROFORMER]


def source_of(dimensions: Any, precision: BundlePrecision, plain_seed: int = 0) -> Source:
    family = family_with(dimensions)

    def opened(instructions: str | None) -> Any:
        seed = 0 if instructions is None else plain_seed
        tensors = lazy_tensors(random_tensors(dimensions, seed))
        checkpoint = Checkpoint(
            dimensions=dimensions, tensors=tensors, text={}, source="a checkpoint"
        )
        return bundles.open_checkpoint(checkpoint, precision, 1, instructions)

    return Source(family=family, dimensions=dimensions, parts_of=lambda _: (), open=opened)


@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda precision: precision.quantize)
@pytest.mark.parametrize("dimensions", FAMILIES, ids=lambda sizes: family_with(sizes).name)
def test_a_model_agrees_with_the_plain_kernels_and_no_other_with_it(
    dimensions: Any, precision: BundlePrecision
) -> None:
    source = source_of(dimensions, precision)
    record = proof(source, source.open(None)[0], _runtime(source, *source.open(None)))
    assert record["tokens"] == record["tokens_equal"] >= 30
    if precision.exact:
        assert record["max_logit_error"] < 1e-3
    other = source_of(dimensions, precision, plain_seed=1)
    record = proof(other, other.open(None)[0], _runtime(other, *other.open(None)))
    assert record["tokens_equal"] < record["tokens"] / 2
