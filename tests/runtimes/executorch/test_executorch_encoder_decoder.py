"""Encoder-decoder models on ExecuTorch give what eager gives, over caches that are the caller's."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kit.dimensions import EXECUTORCH, MIXED, SHALLOW
from kit.marks import slow
from kit.models import NEEDED, SPECIAL_TOKENS, bundle, encoded, opened, speech, text
from kit.rounding import assert_logits_equal
from kvcast.bundle.manifest import MANIFEST, read_bundle
from kvcast.bundle.packages import read_on_trust
from kvcast.engine.requests import Input, Prompt
from kvcast.engine.scheduler import Scheduler
from kvcast.errors import KvcastError
from kvcast.runtimes.base import EncoderDecoder
from kvcast.speech.strategies import BeamSearch, Greedy, Sampling, SearchRequest, Strategy
from runtimes.executorch.small_models import DECODER, FILE, T5, UNILM, built
from verification.subjects import assert_caches_are_right

_PROMPT = np.array([[3, 1, 4], [1, 5, 9]])
_SOURCES: dict[str, Callable[[int, int], Sequence[NDArray[Any]]]] = {"whisper": speech, "t5": text}


@pytest.fixture(params=["whisper", T5])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def pair(name: str) -> tuple[EncoderDecoder, EncoderDecoder]:
    """A model on ExecuTorch, and in eager."""
    executorch, eager = (opened(EXECUTORCH[name], runtime=each) for each in ("executorch", "eager"))
    return executorch, eager


@pytest.fixture(scope="module")
def whisper() -> EncoderDecoder:
    return opened(SHALLOW, runtime="executorch")


@pytest.fixture(scope="module")
def eager() -> EncoderDecoder:
    return opened(SHALLOW, runtime="eager")


def _written(
    runtime: EncoderDecoder, source: Sequence[NDArray[Any]], steps: int = 20
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Tokens [rows, steps] and logits [rows, steps, vocab] of a greedy decode."""
    cache = encoded(runtime, tuple(source))
    new, logits = _PROMPT, []
    for _ in range(steps):
        step, cache = runtime.decode(list(new), cache)
        logits.append(step.copy())
        new = step[:, -1].argmax(axis=-1)[:, None]
    all_logits = np.concatenate(logits, axis=1)
    return all_logits.argmax(axis=-1), all_logits


@pytest.mark.parametrize("name", ["whisper", T5, DECODER, UNILM])
def test_checks_of_caches_pass(name: str) -> None:
    assert_caches_are_right(EXECUTORCH[name], "executorch")


class _Part(Input):
    """One of several inputs that were made together."""

    def __init__(self, source: Sequence[NDArray[Any]], index: int) -> None:
        self.parts = [array[index] for array in source]

    @property
    def positions(self) -> int:
        return len(self.parts[0])

    @classmethod
    def batch(cls, inputs: Sequence["_Part"]) -> tuple[NDArray[Any], ...]:
        return tuple(map(np.stack, zip(*(part.parts for part in inputs), strict=True)))


@pytest.mark.parametrize(
    "strategy", [Greedy(), BeamSearch(3, 1.0), Sampling(0.8, 2, (1, 0, 0))], ids=repr
)
def test_the_decoding_loop_finds_eagers_candidates(
    name: str, pair: tuple[EncoderDecoder, EncoderDecoder], strategy: Strategy
) -> None:
    source = _SOURCES[name](2, 4)
    results = []
    for runtime in pair:
        requests = [
            SearchRequest(
                Prompt(prompt, input=_Part(source, i)),
                strategy=strategy,
                filters=[],
                eot=7,
                max_new_tokens=20,
            )
            for i, prompt in enumerate(_PROMPT)
        ]
        scheduler = Scheduler(runtime, rows=2 * strategy.width, capacity=32, inputs=2)
        for _ in scheduler.run(requests):
            pass
        results.append([request.search.candidates() for request in requests])
    for own, eagers in zip(*results, strict=True):
        assert [candidate.tokens for candidate in own] == [candidate.tokens for candidate in eagers]
        np.testing.assert_allclose(
            [candidate.sum_logprob for candidate in own],
            [candidate.sum_logprob for candidate in eagers],
            atol=1e-3,  # sums over 20 tokens
        )


def test_what_is_encoded_afterwards_and_inputs_that_become_nan_change_nothing(
    whisper: EncoderDecoder,
) -> None:
    (features,) = speech(2, 0)
    expected = _written(whisper, [features])[1]
    cache = encoded(whisper, (features,))
    features[:] = np.nan
    # The same memory holds an encoder's output again, which is of no numbers now.
    encoded(whisper, (features,))
    new = _PROMPT
    for step in range(5):
        logits, cache = whisper.decode(list(new), cache)
        np.testing.assert_array_equal(logits[:, 0], expected[:, step])
        new = logits[:, -1].argmax(axis=-1)[:, None]


def test_any_positions_of_a_chunk_can_be_asked_for(
    whisper: EncoderDecoder, eager: EncoderDecoder
) -> None:
    tokens_rs = np.arange(24).reshape(2, 12)
    asked = (11, *range(10), -2)
    results = [
        runtime.decode(list(tokens_rs), encoded(runtime, speech(2, 3)), positions=asked)[0]
        for runtime in (whisper, eager)
    ]
    assert_logits_equal(*results, SHALLOW)


def test_a_full_cache_says_so(whisper: EncoderDecoder) -> None:
    cache = whisper.new_cache(1, 2, inputs=1)
    with pytest.raises(KvcastError, match="2 positions and is full"):
        whisper.decode(list(_PROMPT[:1]), cache)


@pytest.mark.parametrize("damage", ["cut", "changed", slow("another model's")])
def test_another_file_than_was_exported_is_refused_before_it_is_loaded(
    damage: str, tmp_path: Path
) -> None:
    copy = shutil.copytree(bundle(SHALLOW, runtime="executorch"), tmp_path / "copy")
    assert read_bundle(copy)
    content = (copy / FILE).read_bytes()
    middle = len(content) // 2
    if damage == "cut":
        damaged = content[:-100]
    elif damage == "changed":
        damaged = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    else:
        damaged = (bundle(MIXED, runtime="executorch") / FILE).read_bytes()[: len(content)]
    (copy / FILE).write_bytes(damaged)
    with pytest.raises(KvcastError, match="checksum"):
        read_bundle(copy)


def test_a_file_without_a_manifest_describes_itself_beside_what_runs(tmp_path: Path) -> None:
    folder = bundle(SHALLOW, runtime="executorch")
    unvouched = shutil.copytree(folder, tmp_path / "unvouched")
    (unvouched / MANIFEST).unlink()
    assert read_on_trust(unvouched / FILE) == read_bundle(folder)


def test_a_file_that_is_none_of_executorchs_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("executorch", reason=NEEDED["executorch"][1])
    from kvcast.runtimes.executorch.methods import Methods

    path = tmp_path / "model.pte"
    path.write_bytes(b"nothing" * 100)
    with pytest.raises(KvcastError, match="no ExecuTorch program"):
        Methods(path, threads=1)


@pytest.mark.slow
def test_a_source_that_is_too_long_is_one_line() -> None:
    long = np.zeros((1, 600), np.int64), np.array([600], np.int32)
    with pytest.raises(KvcastError, match="600 tokens and the bundle takes up to 512"):
        encoded(opened(EXECUTORCH["t5"], runtime="executorch"), long)


@pytest.mark.slow
def test_the_caller_in_cpp_transcribes_as_python_does(
    eager: EncoderDecoder, tmp_path: Path
) -> None:
    caller = built("transcribe", tmp_path)
    expected, paths = [], []
    for seed in (0, 1):
        features = speech(1, seed)[0]
        paths.append(tmp_path / f"{seed}.f32")
        features.astype("<f4").tofile(paths[-1])
        expected.append(_text(eager, features))
    done = subprocess.run(
        [caller, bundle(SHALLOW, runtime="executorch") / FILE, *paths],
        capture_output=True,
        text=True,
        check=True,
    )
    assert [list(map(int, line.split())) for line in done.stdout.splitlines()] == expected
    assert all(expected)


def _text(runtime: EncoderDecoder, features: NDArray[Any]) -> list[int]:
    """Likeliest tokens of one input up to an end, of those that may be chosen."""
    cache, new = encoded(runtime, (features,)), np.array(SPECIAL_TOKENS["start_tokens"])
    forbidden, text = [*SPECIAL_TOKENS["blank_tokens"]], list[int]()
    for _ in range(16):
        logits, cache = runtime.decode([new], cache)
        logits[..., [*forbidden, *SPECIAL_TOKENS["suppressed_tokens"]]] = -np.inf
        new = logits[0, -1].argmax(keepdims=True)
        if new[0] in SPECIAL_TOKENS["end_tokens"]:
            break
        text.append(int(new[0]))
        forbidden = []
    return text
