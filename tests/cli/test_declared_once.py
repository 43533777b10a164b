"""An option and a runtime that are declared once are on the command line, in Python and in docs."""

import importlib.util
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from kvcast.cli import export, generate, main, transcribe
from kvcast.cli.arguments import Parser
from kvcast.decoding.params import SAMPLING
from kvcast.errors import UsageError
from kvcast.keywords import keywords_of
from kvcast.loading import doctor
from kvcast.loading.params import ExportParams, LoadParams
from kvcast.runtimes.onnx.target import OnnxTarget
from kvcast.runtimes.target import TARGETS
from kvcast.spec.runtimes import RUNTIMES, PrecisionRequest, RuntimeInfo
from kvcast.text import params
from kvcast.text.params import PromptParams

ROOT = Path(__file__).parents[2]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def help_of(command: ModuleType) -> str:
    parser = Parser(prog="kvcast")
    command.add_arguments(parser)
    return " ".join(parser.format_help().split())


@dataclass(frozen=True, kw_only=True)
class OneMore(PromptParams):
    typical_p: float = SAMPLING(1.0, above=0, most=1, metavar="P", shown="1, all")(
        "sample from the locally typical tokens"
    )


class Model:
    @keywords_of(OneMore)
    def generate(self, prompt: str | Sequence[str], params: OneMore) -> OneMore:
        """Continue a prompt.

        Args:
            prompt: text.
            params: as keywords.

        """
        return params


@pytest.fixture
def one_more_option(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (params, generate):
        monkeypatch.setattr(module, "PromptParams", OneMore)


@pytest.mark.usefixtures("one_more_option")
def test_an_option_arrives_on_the_command_line(text_model, capsys):
    assert "--typical-p P sample from the locally typical tokens (default: 1, all)" in help_of(
        generate
    )
    for words in ([], ["--json"]):
        for option, value in ([], 1.0), (["--typical_p", "0.25"], 0.25):
            assert main(["generate", "hello", *words, *option]) == 0
            assert text_model.calls[-1][1]["typical_p"] == value
    capsys.readouterr()
    assert main(["generate", "hello", "--typical-p", "1.5"]) == 2
    assert (
        "--typical-p: must be a number above 0 and at most 1, not '1.5'" in capsys.readouterr().err
    )


def test_an_option_arrives_in_python():
    assert inspect.signature(Model.generate).parameters["typical_p"].default == 1.0
    assert Model().generate("hello", typical_p=0.5, top_k=3) == OneMore(typical_p=0.5, top_k=3)
    told = "    typical_p: sample from the locally typical tokens (default: 1, all)"
    assert told in inspect.getdoc(Model.generate)
    with pytest.raises(UsageError, match=r"^typical_p must be above 0 and at most 1, not 0$"):
        Model().generate("hello", typical_p=0)


@pytest.mark.usefixtures("one_more_option")
def test_an_option_arrives_in_the_documentation():
    tables = script("option_tables")
    row = "| default | meaning |\n| --- | --- | --- |\n"
    for document, name in ("generate.md", "`--typical-p`"), ("python.md", "`typical_p`"):
        text = tables.written((ROOT / "docs" / document).read_text(encoding="utf-8"))
        assert f"\n| {name} | 1, all | sample from the locally typical tokens |\n" in text
        assert text.count(row) > 2


@pytest.fixture
def one_more_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    row = RuntimeInfo(
        title="Abacus",
        summary="beads on wires",
        extra="beads",
        target="kvcast.runtimes.onnx.target:OnnxTarget",
        quantize=("none", "int2"),
        default_quantize="int2",
        dtypes=("fp8",),
        quantized_dtype="fp8",
        caches=("fp8", "int2"),
    )
    monkeypatch.setitem(RUNTIMES, "abacus", row)
    monkeypatch.setitem(TARGETS, "abacus", OnnxTarget())


@pytest.mark.usefixtures("one_more_runtime")
@pytest.mark.parametrize("command", [transcribe, generate, export])
def test_a_runtime_arrives_on_the_command_line(command: ModuleType):
    told = help_of(command)
    assert re.search(r"--runtime \{[\w,]*\babacus\b", told)
    assert re.search(r"--quantize \{[\w,-]*\bint2\b", told)
    assert re.search(r"--dtype \{[\w,]*\bfp8\b", told)
    assert "abacus: Abacus, beads on wires, needs kvcast[beads]" in told
    assert "int2 on abacus" in told


@pytest.mark.usefixtures("one_more_runtime")
@pytest.mark.parametrize("declared", [LoadParams, ExportParams])
def test_a_runtime_arrives_in_python(declared: type[LoadParams | ExportParams]):
    asked = declared(runtime="abacus", quantize="none", cache="int2")
    assert RUNTIMES["abacus"].choose_precision(asked.precision).cache == "int2"
    assert RUNTIMES["abacus"].choose_precision(PrecisionRequest()).quantize == "int2"
    with pytest.raises(
        UsageError, match="quantize of Abacus must be one of none, int2, not 'int8'"
    ):
        RUNTIMES["abacus"].choose_precision(declared(quantize="int8").precision)
    with pytest.raises(UsageError, match="dtype of Abacus is always fp8: drop --dtype bf16"):
        RUNTIMES["abacus"].choose_precision(declared(dtype="bf16").precision)
    with pytest.raises(
        UsageError, match=r"runtime must be one of onnx, .*abacus, not 'slide rule'"
    ):
        declared(runtime="slide rule")


@pytest.mark.usefixtures("one_more_runtime")
def test_a_runtime_arrives_in_the_documentation():
    tables = script("option_tables")
    text = tables.written((ROOT / "docs/cli.md").read_text(encoding="utf-8"))
    assert (
        "\n| `abacus` | Abacus: beads on wires | `kvcast[beads]` | `none`, **`int2`** | `fp8` "
        "| **`fp8`**, `int2` |\n"
    ) in text
    assert text.count("abacus: Abacus, beads on wires, needs kvcast[beads]") == 2
    for name in tables.SCHEMAS:
        schema = tables.enumerated((ROOT / "docs" / name).read_text(encoding="utf-8"))
        assert re.search(
            r'\{"enum": \["onnx", "aoti", "executorch", "native", "eager", "abacus"\W', schema
        )


@pytest.mark.usefixtures("one_more_runtime")
def test_a_runtime_arrives_at_the_doctors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "_ask", lambda *question: (None, f"no {question[-1]}"))
    problems = {runtime.name: runtime.problem for runtime in doctor.examine().runtimes}
    assert list(problems) == list(RUNTIMES)
    assert problems["abacus"] == "no abacus: pip install 'kvcast[beads]'"


def test_a_runtime_that_is_not_in_the_table_is_refused():
    with pytest.raises(
        UsageError, match="runtime must be one of onnx, aoti, executorch, native, eager"
    ):
        LoadParams(runtime="abacus")


def test_the_tables_of_the_documentation_are_current(capsys):
    assert script("option_tables").main(["--check"]) == 0, "run python scripts/option_tables.py"
    assert capsys.readouterr().out == ""
