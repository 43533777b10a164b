"""Decoder-only models and UniLMs on ExecuTorch give what eager gives, in Python and in C++."""

import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from executorch_bundles import NEEDED, lowering, write_executorch_bundle
from kvcast.lowering.onnx_decoder import cache_layers
from kvcast.runtimes.base import DecoderOnly
from kvcast.runtimes.eager_decoder import EagerDecoderOnly
from kvcast.runtimes.eager_unilm import EagerUnilm
from random_decoders import MISTRAL, random_decoder
from random_unilms import SIMBERT, random_unilm

_CLOSE = 1e-3
# A ring and a linear cache side by side; prompts longer than a chunk.
_MIXED = replace(MISTRAL, windows=(7, None))
_PROMPTS = [np.arange(300) * 7 % 160, np.array([3, 1, 4, 1, 5])]
_CALLER = Path(__file__).parents[2] / "docs" / "executorch" / "generate.cpp"


@dataclass(frozen=True)
class Pair:
    """A bundle and the same model in eager."""

    folder: Path
    runtime: DecoderOnly
    eager: DecoderOnly


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    pytest.importorskip("executorch", reason=NEEDED)
    from kvcast.runtimes.executorch_decoder import ExecutorchDecoderOnly

    folder = tmp_path_factory.mktemp("executorch") / "mixed"
    programs = random_decoder(_MIXED)
    manifest = write_executorch_bundle(
        "decoder", programs, cache_layers(_MIXED), folder, dimensions=_MIXED.to_json()
    )
    runtime = ExecutorchDecoderOnly(folder, manifest, threads=1)
    return Pair(folder, runtime, EagerDecoderOnly(programs))


def _written(runtime: DecoderOnly, prompts: Sequence[NDArray[Any]], steps: int) -> NDArray[Any]:
    """Logits [rows, steps, vocab] of a greedy decode."""
    cache = runtime.new_cache(len(prompts), max(map(len, prompts)) + steps)
    new, logits = list(prompts), []
    for _ in range(steps):
        step, cache = runtime.decode(new, cache)
        logits.append(step)
        new = list(step[:, -1].argmax(axis=-1)[:, None])
    return np.concatenate(logits, axis=1)


def test_rows_of_different_lengths_are_eagers_past_window_and_chunk(mixed: Pair) -> None:
    logits, expected = (_written(x, _PROMPTS, 20) for x in (mixed.runtime, mixed.eager))
    np.testing.assert_allclose(logits, expected, atol=_CLOSE)
    np.testing.assert_array_equal(logits.argmax(axis=-1), expected.argmax(axis=-1))


def test_rows_that_are_reset_reordered_and_forked_are_eagers(mixed: Pair) -> None:
    results = []
    for runtime in (mixed.runtime, mixed.eager):
        cache = runtime.new_cache(3, 400)
        _, cache = runtime.decode([_PROMPTS[0], _PROMPTS[1], _PROMPTS[1][:2]], cache)
        forked = runtime.fork(cache, [0, 2], 330)
        cache = runtime.reset(runtime.reorder(cache, [1, 1, 0]), [1])
        first, cache = runtime.decode([np.array([9]), np.array([8, 7])], cache, [0, 1], (-1,))
        second, cache = runtime.decode([np.array([6])] * 3, cache)
        third, _ = runtime.decode([np.array([5])] * 2, forked)
        results.append(np.concatenate([first, second, third]))
    np.testing.assert_allclose(*results, atol=_CLOSE)


def test_the_caller_in_cpp_writes_the_same_tokens(mixed: Pair, tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    caller = _compiled(compiler, tmp_path / "generate")
    prompt, steps = _PROMPTS[0], 12
    arguments = [str(mixed.folder / "executorch" / "model.pte"), str(steps), *map(str, prompt)]
    done = subprocess.run([caller, *arguments], capture_output=True, text=True, check=True)
    expected = _written(mixed.runtime, [prompt], steps)[0].argmax(axis=-1).tolist()
    # 7 and 9 end a text, as the bundle's writer said.
    ends = [i for i, token in enumerate(expected) if token in (7, 9)]
    assert list(map(int, done.stdout.split())) == expected[: min([steps, *ends])]


def _compiled(compiler: str, program: Path) -> Path:
    import executorch
    import torch

    package = Path(executorch.__path__[0])
    include = package / "include"
    libraries = [
        *(package / "lib" / f"libexecutorch{part}.so" for part in ("", "_threadpool")),
        package / "lib" / "libexecutorch_kernels_optimized.so",
        package / "lib" / "libexecutorch_backend_xnnpack.so",
        package / "extension" / "llm" / "custom_ops" / "libcustom_ops_aot_lib.so",
        *(package / "extension" / "pybindings").glob("_C*.so"),
    ]
    python = Path(sysconfig.get_config_var("LIBDIR"))
    folders = {path.parent for path in libraries} | {Path(torch.__path__[0]) / "lib", python}
    command = [compiler, "-std=c++20", "-w", str(_CALLER), "-o", str(program)]
    command += [f"-I{include}", f"-I{include}/executorch/runtime/core/portable_type/c10"]
    command += ["-DC10_USING_CUSTOM_GENERATED_MACROS", "-Wl,--no-as-needed", *map(str, libraries)]
    command += [f"-L{python}", f"-lpython{sysconfig.get_config_var('VERSION')}"]
    command += [f"-Wl,-rpath,{folder}" for folder in folders] + ["-Wl,--allow-shlib-undefined"]
    subprocess.run(command, check=True)
    return program


def test_a_unilm_writes_and_embeds_as_eager_does(tmp_path: Path) -> None:
    lowering("unilm")
    from kvcast.runtimes.executorch_unilm import ExecutorchUnilm

    programs = random_unilm(SIMBERT)
    manifest = write_executorch_bundle(
        "unilm", programs, cache_layers(SIMBERT), tmp_path / "unilm", dimensions=asdict(SIMBERT)
    )
    runtime, eager = ExecutorchUnilm(tmp_path / "unilm", manifest, threads=1), EagerUnilm(programs)
    sources = [np.arange(9), np.array([3, 1, 4])]
    np.testing.assert_allclose(
        _written(runtime, sources, 12), _written(eager, sources, 12), atol=_CLOSE
    )
    np.testing.assert_allclose(runtime.embed(sources), eager.embed(sources), atol=_CLOSE)
