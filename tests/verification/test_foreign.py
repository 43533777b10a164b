"""`kvcast verify --foreign`: sound exports pass, broken ones fail where they are wrong."""

import json

import jsonschema
import pytest

from kit.foreign_models import LLAMA, SEQ2SEQ, write_checkpoint
from kit.foreign_onnx import EXPORTS, write_genai_llama, write_optimum_llama, write_optimum_t5
from kit.marks import slow
from kvcast.cli import main
from verification.test_verification_report import SCHEMA


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, model in (("llama", LLAMA), ("t5", SEQ2SEQ)):
        write_checkpoint(folder / name, model)
    return folder


def verified(capsys, folder, *words):
    """Return the exit code, the document, and the checks by name."""
    code = main(["verify", "--foreign", str(folder), "--json", "--positions", "48", *words])
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    return code, document, {check["name"]: check for check in document["checks"]}


def failed(checks):
    return {name for name, check in checks.items() if check["outcome"] == "failed"}


@pytest.mark.parametrize(
    "export",
    ["optimum", "genai", *map(slow, ("optimum merged", "optimum split", "genai unshared"))],
)
def test_sound_exports_pass(tmp_path, capsys, checkpoints, export):
    model, write = EXPORTS[export]
    write(tmp_path, model)
    name = "t5" if model is SEQ2SEQ else "llama"
    code, document, checks = verified(capsys, tmp_path, "--against", str(checkpoints / name))
    assert (code, failed(checks)) == (0, set())
    assert document["passed"]
    made = {check for check in checks if checks[check]["outcome"] == "passed"}
    assert made == {
        *("teacher-forced", "free-running", "second-input", "chunks", "batch", "beams"),
        *("truncate", "capacity"),
    }
    assert checks["teacher-forced"]["measured"]["tokens"] == 2 * 29
    assert checks["capacity"]["measured"]["capacity"] == 48


def test_what_a_step_copies_is_reported_in_bytes(tmp_path, capsys):
    write_optimum_llama(tmp_path, LLAMA)
    code, _, checks = verified(capsys, tmp_path)
    # Without a checkpoint it is compared with itself.
    assert code == 0
    assert checks["teacher-forced"]["outcome"] == "skipped"
    position = LLAMA.layers * 2 * LLAMA.kv_heads * LLAMA.head_dim * 4
    copies = checks["copies"]
    assert copies["outcome"] == "noted"
    assert copies["measured"]["length"] == 63
    assert copies["measured"]["held_bytes"] == 63 * position
    (concat,) = copies["measured"]["from_the_file"]
    assert concat == {
        **{"operator": "Concat", "count": 4},
        **{"bytes": 64 * position, "bytes_per_position": position},
    }
    groups = LLAMA.heads // LLAMA.kv_heads
    assert copies["measured"]["bytes_a_step"] == 64 * position * (1 + groups)
    assert checks["memory"]["measured"]["bytes_per_step"] == position


def test_a_step_that_rotates_by_another_position_is_found(tmp_path, capsys, checkpoints):
    write_optimum_llama(tmp_path, LLAMA, fault="position")
    code, _, checks = verified(capsys, tmp_path, "--against", str(checkpoints / "llama"))
    assert code == 1
    # All at once it is right, so steps alone tell; what is wrong both times tells nothing.
    assert failed(checks) >= {"teacher-forced", "free-running", "chunks", "capacity"}
    assert "second-input" not in failed(checks)
    assert "from position" in checks["chunks"]["detail"]


def test_a_stale_cache_is_found_by_a_second_input(tmp_path, capsys):
    write_genai_llama(tmp_path, LLAMA, fault="stale")
    code, _, checks = verified(capsys, tmp_path)
    assert code == 1
    assert "second-input" in failed(checks)
    assert "input 2 in the row of input 1" in checks["second-input"]["detail"]


@pytest.mark.slow
def test_another_row_of_biases_is_found(tmp_path, capsys, checkpoints):
    write_optimum_t5(tmp_path, SEQ2SEQ, fault="bias")
    code, _, checks = verified(capsys, tmp_path, "--against", str(checkpoints / "t5"))
    assert code == 1
    assert failed(checks) >= {"teacher-forced", "capacity"}


@pytest.mark.slow
def test_cross_keys_that_are_computed_anew_are_reported_and_no_error(tmp_path, capsys, checkpoints):
    write_optimum_t5(tmp_path, SEQ2SEQ, recomputes=True)
    code, _, checks = verified(capsys, tmp_path, "--against", str(checkpoints / "t5"))
    assert (code, failed(checks)) == (0, set())
    found = checks["recomputed"]
    assert found["measured"] == {"operators": {"MatMul": 2 * SEQ2SEQ.layers}, "branches": 1}
    assert "anew from the encoder's output: 4 MatMul; 1 If" in found["detail"]


@pytest.mark.slow
def test_programs_of_executorch_whose_caches_are_stale(tmp_path, capsys, checkpoints):
    from kit.foreign_programs import write_program

    words = ("--against", str(checkpoints / "llama"), "--trust")
    write_program(tmp_path / "sound", LLAMA, in_place=True)
    code, _, checks = verified(capsys, tmp_path / "sound", *words)
    assert (code, failed(checks)) == (0, set())
    assert (
        checks["copies"]["detail"] == "a step writes 4 tensors of caches in place, and copies none"
    )
    write_program(tmp_path / "stale", LLAMA, stale=True)
    code, _, checks = verified(capsys, tmp_path / "stale", *words)
    assert code == 1
    assert "second-input" in failed(checks)
    measured = checks["copies"]["measured"]
    whole = LLAMA.positions * LLAMA.layers * 2 * LLAMA.kv_heads * LLAMA.head_dim * 4
    copied = {each["operator"]: each["bytes"] for each in measured["from_the_file"]}
    assert copied["index_put"] == copied["copy_"] == measured["held_bytes"] == whole
    assert "queries meet all slots" in checks["copies"]["detail"]


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        ((), 2, "give a MODEL, or the folder"),
        (("demo", "--foreign", "x"), 2, "give a MODEL, or the folder"),
        (("--foreign", "missing"), 66, "no folder missing"),
        (("--foreign", "x", "--dtype", "bf16"), 2, "drop --dtype"),
    ],
)
def test_wrong_usage_is_one_line(capsys, words, code, line):
    assert main(["verify", *words]) == code
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1


def test_another_model_as_reference_is_refused(tmp_path, capsys, checkpoints):
    write_optimum_llama(tmp_path, LLAMA)
    against = str(checkpoints / "t5")
    assert main(["verify", "--foreign", str(tmp_path), "--against", against, "-q"]) == 2
    assert "is another model than" in capsys.readouterr().err
