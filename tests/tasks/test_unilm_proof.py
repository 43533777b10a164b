"""The proof of a UniLM's bundle: it passes the model's own and refuses another's."""

from dataclasses import replace

import pytest

from kvcast.errors import KvcastError
from kvcast.runtimes.onnx_unilm import OnnxUnilm
from kvcast.tasks.proof import prove_unilm
from random_unilms import MODELS, ROFORMER, random_unilm, write_unilm_bundle


@pytest.mark.parametrize("dimensions", MODELS, ids=lambda dimensions: dimensions.architecture)
def test_a_bundle_gives_what_its_model_gives(dimensions, tmp_path):
    programs = random_unilm(dimensions)
    manifest = write_unilm_bundle(programs, tmp_path / "bundle")
    record = prove_unilm(OnnxUnilm(tmp_path / "bundle", manifest, 1), programs, exact=True)
    assert record["tokens_equal"] == record["tokens"] == 56
    assert record["max_logit_error"] < 1e-4


@pytest.mark.parametrize(("positions", "tokens"), [(16, 30), (40, 56)])
@pytest.mark.parametrize("dimensions", MODELS[1:], ids=lambda dimensions: dimensions.architecture)
def test_a_model_of_few_positions_is_proven_within_them(dimensions, positions, tokens, tmp_path):
    programs = random_unilm(replace(dimensions, max_positions=positions))
    manifest = write_unilm_bundle(programs, tmp_path / "bundle")
    record = prove_unilm(OnnxUnilm(tmp_path / "bundle", manifest, 1), programs, exact=True)
    assert record["tokens_equal"] == record["tokens"] == tokens


def test_another_models_bundle_is_refused(tmp_path):
    manifest = write_unilm_bundle(random_unilm(ROFORMER, seed=1), tmp_path / "bundle")
    candidate = OnnxUnilm(tmp_path / "bundle", manifest, 1)
    with pytest.raises(KvcastError, match="the exported graphs differ from the model"):
        prove_unilm(candidate, random_unilm(ROFORMER), exact=True)
