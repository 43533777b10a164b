"""What an ExecuTorch file holds: caches written in place, facts for callers, small matrices."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executorch_bundles import NEEDED, lowering, write_executorch_bundle
from kvcast.bundle.manifest import Manifest
from kvcast.errors import KvcastError
from kvcast.lowering import onnx_decoder, onnx_whisper
from random_decoders import GEMMA3, MIXTRAL, random_decoder
from random_models import SMALL, random_programs, speech

_WORDY = replace(SMALL, vocab_size=2000, decoder_layers=1, encoder_layers=1)
_TOLERANCES = {"none": 1e-3, "8da8w": 0.5, "8da4w": 4.0}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Manifest]]:
    """The same Whisper in every precision."""
    pytest.importorskip("executorch", reason=NEEDED)
    folder = tmp_path_factory.mktemp("executorch")
    programs, layers = random_programs(_WORDY), onnx_whisper.cache_layers(_WORDY)
    return {
        quantize: (
            folder / quantize,
            write_executorch_bundle("whisper", programs, layers, folder / quantize, quantize),
        )
        for quantize in _TOLERANCES
    }


def _plan(folder: Path, method: str) -> Any:
    from executorch.exir._serialize._program import deserialize_pte_binary

    file = deserialize_pte_binary((folder / "executorch" / "model.pte").read_bytes())
    return next(plan for plan in file.program.execution_plan if plan.name == method)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_step_writes_new_positions_and_copies_no_cache(
    bundles: dict[str, tuple[Path, Manifest]],
) -> None:
    plan = _plan(bundles["none"][0], "decode")
    values = [value.val for value in plan.values]
    caches = set(plan.inputs[3:])
    operators: Counter[str] = Counter()
    for instruction in plan.chains[0].instructions:
        call = instruction.instr_args
        if caches.intersection(getattr(call, "args", ())):
            operators[plan.operators[call.op_index].name] += 1
    layers = _WORDY.decoder_layers
    assert operators["llama::update_cache"] == 2 * layers
    assert operators["llama::custom_sdpa"] == 2 * layers
    # What else there is asks for a size.
    assert set(operators) <= {"llama::update_cache", "llama::custom_sdpa", "aten::sym_size"}
    # They lie in the caller's memory.
    assert not any(values[i].allocation_info for i in caches)


def test_a_caller_finds_what_it_must_know_in_the_file(
    bundles: dict[str, tuple[Path, Manifest]],
) -> None:
    from kvcast.runtimes.executorch_methods import Methods

    methods = Methods(bundles["none"][0] / "executorch" / "model.pte", threads=1)
    facts = {"vocab_size": [2000], "layers": [1], "capacity": [32], "end_tokens": [7, 9]}
    assert {name: methods.run(name, []) for name in facts} == facts


@pytest.mark.parametrize("quantize", _TOLERANCES)
def test_quantised_logits_stay_near_eagers(
    bundles: dict[str, tuple[Path, Manifest]], quantize: str
) -> None:
    from kvcast.runtimes.eager import EagerEncoderDecoder
    from kvcast.runtimes.executorch import ExecutorchEncoderDecoder

    runtime = ExecutorchEncoderDecoder(*bundles[quantize], threads=1)
    logits = []
    for candidate in (runtime, EagerEncoderDecoder(random_programs(_WORDY))):
        cache = candidate.new_cache(candidate.encode(*speech(1, 0)), 1)
        logits.append(candidate.decode(np.array([[1, 2, 3]]), cache)[0])
    np.testing.assert_allclose(*logits, atol=_TOLERANCES[quantize])


def test_quantised_files_are_smaller(bundles: dict[str, tuple[Path, Manifest]]) -> None:
    sizes = [manifest.files["executorch/model.pte"].size for _, manifest in bundles.values()]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[1] < 0.5 * sizes[0]


@pytest.mark.parametrize(
    ("dimensions", "reason"),
    [(GEMMA3, "soft cap"), (MIXTRAL, "mixtures")],
    ids=["gemma", "mixtral"],
)
def test_what_executorch_lacks_is_one_line(dimensions: Any, reason: str, tmp_path: Path) -> None:
    lower = lowering("decoder").lower
    layers = onnx_decoder.cache_layers(dimensions)
    with pytest.raises(KvcastError, match=reason):
        lower(random_decoder(dimensions), layers, "none", tmp_path)
