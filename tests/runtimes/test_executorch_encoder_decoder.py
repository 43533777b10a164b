"""Encoder-decoder models on ExecuTorch give what eager gives, over caches that are the caller's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from executorch_bundles import lowering, write_executorch_bundle
from kvcast.bundle.manifest import read_bundle
from kvcast.errors import KvcastError
from kvcast.lowering.onnx_whisper import cache_layers
from kvcast.runtimes.base import EncoderDecoder
from kvcast.runtimes.eager import EagerEncoderDecoder
from random_models import (
    CROSS_BIASED_T5,
    SMALL,
    SMALL_T5,
    random_programs,
    random_t5_programs,
    speech,
    text,
)

_CLOSE = 1e-3
_PROMPT = np.array([[3, 1, 4], [1, 5, 9]])


@pytest.fixture(scope="module")
def whisper_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("executorch") / "whisper"
    write_executorch_bundle("whisper", random_programs(SMALL), cache_layers(SMALL), folder)
    return folder


@pytest.fixture(scope="module")
def whisper(whisper_folder: Path) -> EncoderDecoder:
    from kvcast.runtimes.executorch import ExecutorchEncoderDecoder

    return ExecutorchEncoderDecoder(whisper_folder, read_bundle(whisper_folder), threads=1)


@pytest.fixture(scope="module")
def eager() -> EncoderDecoder:
    return EagerEncoderDecoder(random_programs(SMALL))


def _written(
    runtime: EncoderDecoder, source: Sequence[NDArray[Any]], steps: int = 20
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Tokens [rows, steps] and logits [rows, steps, vocab] of a greedy decode."""
    cache = runtime.new_cache(runtime.encode(*source), 2)
    new, logits = _PROMPT, []
    for _ in range(steps):
        step, cache = runtime.decode(new, cache)
        logits.append(step)
        new = step[:, -1].argmax(axis=-1)[:, None]
    all_logits = np.concatenate(logits, axis=1)
    return all_logits.argmax(axis=-1), all_logits


def _assert_as_eager(
    runtime: EncoderDecoder, eager: EncoderDecoder, source: Sequence[NDArray[Any]]
) -> None:
    tokens, logits = _written(runtime, source)
    expected_tokens, expected_logits = _written(eager, source)
    np.testing.assert_allclose(logits, expected_logits, atol=_CLOSE)
    np.testing.assert_array_equal(tokens, expected_tokens)


def test_whisper_writes_what_eager_writes_also_for_a_second_input(
    whisper: EncoderDecoder, eager: EncoderDecoder
) -> None:
    for seed in (0, 1):
        _assert_as_eager(whisper, eager, speech(2, seed))


def test_a_decode_after_one_that_stopped_early_sees_nothing_of_it(
    whisper: EncoderDecoder, eager: EncoderDecoder
) -> None:
    _written(whisper, speech(2, 5), steps=3)
    _assert_as_eager(whisper, eager, speech(2, 6))


def test_sessions_in_turns_do_not_see_each_other(whisper: EncoderDecoder) -> None:
    alone = [_written(whisper, speech(2, seed), steps=6)[1] for seed in (0, 1)]
    caches = [whisper.new_cache(whisper.encode(*speech(2, seed)), 2) for seed in (0, 1)]
    new = [_PROMPT, _PROMPT]
    for step in range(6):
        for i in (0, 1):
            logits, caches[i] = whisper.decode(new[i], caches[i])
            np.testing.assert_array_equal(logits[:, 0], alone[i][:, step])
            new[i] = logits[:, -1].argmax(axis=-1)[:, None]


def test_rows_that_fan_out_and_change_places_are_eagers(
    whisper: EncoderDecoder, eager: EncoderDecoder
) -> None:
    results = []
    for runtime in (whisper, eager):
        cache = runtime.new_cache(runtime.encode(*speech(1, 2)), 1)
        _, cache = runtime.decode(_PROMPT[:1], cache)
        cache = runtime.reorder(cache, [0, 0, 0])
        logits = []
        for new, sources in (([5, 6, 7], [2, 0, 0]), ([8, 9, 10], [1, 1, 2]), ([1, 2, 3], None)):
            step, cache = runtime.decode(np.array(new)[:, None], cache)
            logits.append(step)
            cache = cache if sources is None else runtime.reorder(cache, sources)
        cache = runtime.reset(cache, [1])
        step, cache = runtime.decode(np.array([[4], [4], [4]]), cache)
        results.append(np.stack([*logits, step]))
    np.testing.assert_allclose(*results, atol=_CLOSE)


def test_any_positions_of_a_chunk_can_be_asked_for(
    whisper: EncoderDecoder, eager: EncoderDecoder
) -> None:
    tokens_rs = np.arange(24).reshape(2, 12)
    asked = (11, *range(10), -2)
    results = [
        runtime.decode(tokens_rs, runtime.new_cache(runtime.encode(*speech(2, 3)), 2), asked)[0]
        for runtime in (whisper, eager)
    ]
    np.testing.assert_allclose(*results, atol=_CLOSE)


def test_a_full_cache_says_so(whisper: EncoderDecoder) -> None:
    cache = whisper.new_cache(whisper.encode(*speech(1, 0)), 1, capacity=2)
    with pytest.raises(KvcastError, match="2 positions and is full"):
        whisper.decode(_PROMPT[:1], cache)


def test_a_truncated_file_is_refused_before_it_is_loaded(
    whisper_folder: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in whisper_folder.rglob("*"):
        if path.is_file():
            target = copy / path.relative_to(whisper_folder)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    assert read_bundle(copy)
    model = copy / "executorch" / "model.pte"
    model.write_bytes(model.read_bytes()[:-100])
    with pytest.raises(KvcastError, match="checksum"):
        read_bundle(copy)


def test_a_file_that_is_none_of_executorchs_is_one_line(tmp_path: Path) -> None:
    lowering("whisper")
    from kvcast.runtimes.executorch_methods import Methods

    path = tmp_path / "model.pte"
    path.write_bytes(b"nothing" * 100)
    with pytest.raises(KvcastError, match="no ExecuTorch program"):
        Methods(path, threads=1)


@pytest.mark.parametrize("dimensions", [SMALL_T5, CROSS_BIASED_T5], ids=["gated", "cross-biased"])
def test_t5_writes_what_eager_writes(dimensions: Any, tmp_path: Path) -> None:
    layers = lowering("t5").bounded_layers(dimensions)
    from kvcast.runtimes.executorch import ExecutorchEncoderDecoder

    programs = random_t5_programs(dimensions)
    manifest = write_executorch_bundle("t5", programs, layers, tmp_path / "t5")
    t5 = ExecutorchEncoderDecoder(tmp_path / "t5", manifest, threads=1)
    for seed in (0, 1):
        _assert_as_eager(t5, EagerEncoderDecoder(programs), text(2, seed))
    long = np.zeros((1, 600), np.int64), np.array([600], np.int32)
    with pytest.raises(KvcastError, match="600 tokens and the bundle takes up to 512"):
        t5.encode(*long)
