"""ExecuTorch files: caches written in place, constants for callers, quantised matrices."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit.dimensions import EXECUTORCH, GEMMA3, MIXED, MIXTRAL, SHALLOW
from kit.marks import soak
from kit.models import SPECIAL_TOKENS, bundle, encoded, opened, random_programs, speech, write
from kvcast.bundle.manifest import read_bundle
from kvcast.errors import KvcastError
from runtimes.executorch.small_models import DECODER, FILE, T5, UNILM

_PAGE = Path(__file__).parents[3] / "docs" / "executorch.md"
# Operators that read or write caches in place, reshape them without a copy, or read a size.
_IN_PLACE = {
    "llama::update_cache",
    "llama::update_cache_with_indices",
    "llama::custom_sdpa",
    "aten::bmm",
    "executorch_prim::et_view",
    "aten::sym_size",
}


def _folder(name: str) -> Path:
    return bundle(EXECUTORCH[name], runtime="executorch")


def _program(name: str) -> Any:
    content = (_folder(name) / FILE).read_bytes()
    from executorch.exir._serialize._program import deserialize_pte_binary

    return deserialize_pte_binary(content).program


def _facts(name: str) -> dict[str, Any]:
    return json.loads((_folder(name) / "executorch" / "constants.json").read_text("utf-8"))


def _plan(name: str, method: str = "decode") -> Any:
    return next(plan for plan in _program(name).execution_plan if plan.name == method)


def _delegated(blob: bytes, folder: Path) -> Any:
    """XNNPACK's graph in a delegate's bytes."""
    from executorch.backends.xnnpack.serialization import xnnpack_graph_serialize as form
    from executorch.exir._serialize._flatbuffer import _flatc_decompile

    header = form.XNNHeader.from_bytes(blob[: form.XNNHeader.EXPECTED_LENGTH])
    start = header.flatbuffer_offset
    schema, binary = folder / "schema.fbs", folder / "graph.bin"
    schema.write_bytes(form._get_schema_bytes())
    binary.write_bytes(blob[start : start + header.flatbuffer_size])
    _flatc_decompile(str(folder), str(schema), str(binary), ["--raw-binary"])
    return json.loads(binary.with_suffix(".json").read_text("utf-8"))


def _calls(plan: Any) -> list[tuple[str, list[int]]]:
    """Name and values of each instruction; XNNPACK's is "delegate"."""
    instructions = [instruction.instr_args for instruction in plan.chains[0].instructions]
    return [
        (
            plan.operators[call.op_index].name if hasattr(call, "op_index") else "delegate",
            list(call.args),
        )
        for call in instructions
        if hasattr(call, "args")
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["whisper", T5, DECODER, UNILM])
def test_a_step_copies_no_cache_and_projects_none(name: str) -> None:
    plan = _plan(name)
    values = [value.val for value in plan.values]
    # Cross caches have three axes and a test of their own.
    caches = {i for i in plan.inputs[3:] if len(values[i].sizes) == 4}
    lying_elsewhere = [i for i in caches if values[i].allocation_info]
    operators: Counter[str] = Counter()
    for operator, arguments in _calls(plan):
        if caches.intersection(arguments):
            operators[operator] += 1
            if operator == "executorch_prim::et_view":
                caches.add(arguments[-1])
    assert set(operators) <= _IN_PLACE
    layers = opened(EXECUTORCH[name], runtime="executorch")._decode.cache_shapes
    written = operators["llama::update_cache"] + operators["llama::update_cache_with_indices"]
    # A cross cache of each layer is an input as well, and never written.
    assert written == len(layers) // (2 if "encode" in read_bundle(_folder(name)).graphs else 1)
    assert not lying_elsewhere


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["whisper", T5])
def test_a_step_multiplies_by_each_cross_cache_once_and_does_nothing_else_with_it(
    name: str, tmp_path: Path
) -> None:
    program = _program(name)
    plan = next(plan for plan in program.execution_plan if plan.name == "decode")
    values = [value.val for value in plan.values]
    cross = {i for i in plan.inputs[3:] if len(values[i].sizes) == 3}
    layers = read_bundle(_folder(name)).cache_layers("cross").layers
    assert len(cross) == 2 * layers
    assert not any(values[i].allocation_info for i in cross)
    uses: Counter[int] = Counter()
    for instruction in plan.chains[0].instructions:
        call = instruction.instr_args
        if not cross.intersection(getattr(call, "args", ())):
            continue
        if hasattr(call, "op_index"):
            assert plan.operators[call.op_index].name == "aten::sym_size"
            continue
        delegate = plan.delegates[call.delegate_index]
        blob = program.backend_delegate_data[delegate.processed.index].data
        graph = _delegated(blob, tmp_path)
        inside = {
            value["xvalue_union"]["id_out"]: call.args[value["xvalue_union"]["external_id"]]
            for value in graph["xvalues"]
            if value["xvalue_union"]["id_out"] in graph["input_ids"]
        }
        for node in graph["xnodes"]:
            numbers = [x for x in node["xnode_union"].values() if isinstance(x, int)]
            touched = cross.intersection(inside.get(number) for number in numbers)
            uses.update(touched)
            assert not touched or node["xnode_union_type"] == "XNNBatchMatrixMultiply"
    assert uses == dict.fromkeys(cross, 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_ring_has_a_window_and_a_chunk_of_slots_however_long_the_text() -> None:
    from executorch.exir.schema import TensorShapeDynamism

    plan = _plan("decoder")
    ring, linear = (plan.values[plan.inputs[i]].val for i in (3, 5))
    assert (ring.sizes[1], ring.shape_dynamism) == (7 + 128 - 1, TensorShapeDynamism.STATIC)
    assert linear.sizes[1] == MIXED.max_positions
    assert linear.shape_dynamism == TensorShapeDynamism.DYNAMIC_BOUND


@pytest.mark.parametrize("name", ["whisper", T5, DECODER])
def test_a_caller_finds_what_it_must_know_in_the_file_in_the_bundle_and_on_the_page(
    name: str,
) -> None:
    facts = _facts(name)
    from kvcast.runtimes.executorch.methods import Methods

    methods = Methods(_folder(name) / FILE, threads=1)
    for fact, value in facts.items():
        assert methods.run(fact, []) == (value if isinstance(value, list) else [value])
    first = {"start_tokens": [EXECUTORCH[name].start_token]} if name == "t5" else {}
    assert SPECIAL_TOKENS | first == {token: facts[token] for token in SPECIAL_TOKENS}
    assert facts.keys() <= set(re.findall(r"`(\w+)`", _PAGE.read_text("utf-8")))
    shapes = methods.shapes("decode")
    assert [shape[1] for shape in shapes[3:][: 2 * facts["layers"] : 2]] == facts["capacities"]
    assert shapes[0] == (1, facts["chunk"])
    assert shapes[3][::3] == (facts["kv_heads"], facts["head_dim"])


@pytest.mark.slow
def test_whispers_file_has_the_shape_of_features_and_the_decoders_which_caches_are_rings() -> None:
    facts = [_facts(name) for name in ("whisper", "decoder")]
    assert (facts[0]["mel_bins"], facts[0]["mel_frames"]) == (80, 2 * SHALLOW.source_positions)
    assert [fact["rings"] for fact in facts] == [[0], [1, 0]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "quantize", "least", "smaller"),
    [
        # Its encoder is in 8da8w.
        ("whisper", "8da4w", 0.9, 0.5),
        soak("whisper", "8da8w", 0.98, 0.5),
        soak("unilm", "8da8w", 0.98, 0.8),
        soak("unilm", "8da4w", 0.9, 0.7),
    ],
)
def test_quantised_logits_follow_eagers_and_the_file_is_smaller(
    name: str, quantize: str, least: float, smaller: float
) -> None:
    dimensions = EXECUTORCH[name]
    logits = []
    runtimes = opened(dimensions, quantize, "executorch"), opened(dimensions, runtime="eager")
    for candidate in runtimes:
        encoder_decoder = name == "whisper"
        cache = encoded(candidate, speech(1, 0)) if encoder_decoder else candidate.new_cache(1, 8)
        logits.append(candidate.decode([np.array([1, 2, 3])], cache)[0].ravel())
    assert not np.array_equal(*logits)
    assert np.corrcoef(*logits)[0, 1] > least
    sizes = [
        (bundle(dimensions, each, "executorch") / FILE).stat().st_size
        for each in (quantize, "none")
    ]
    assert sizes[0] < smaller * sizes[1]


@pytest.mark.parametrize(
    ("dimensions", "quantize", "reason"),
    [
        (GEMMA3, "none", "soft cap"),
        (MIXTRAL, "none", "mixtures"),
        (replace(MIXED, inner=80), "8da4w", "rows of 80: use --quantize 8da8w"),
    ],
    ids=["gemma", "mixtral", "groups"],
)
def test_what_executorch_lacks_is_one_line(
    dimensions: Any, quantize: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(KvcastError, match=reason):
        write(random_programs(dimensions), tmp_path / "bundle", quantize, "executorch")
