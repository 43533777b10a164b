"""Decoder-only models and UniLMs on ExecuTorch give what eager gives, in Python and in C++."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kit.dimensions import EXECUTORCH, MIXED
from kit.letters import Letters
from kit.models import SPECIAL_TOKENS, bundle, opened
from kit.rounding import assert_logits_equal
from kvcast.runtimes.base import Runtime
from kvcast.text.model import TextModel
from runtimes.executorch.small_models import FILE, built

# Of ExecuTorch, whose exports take long, the others have an encoder-decoder.
pytestmark = pytest.mark.slow
# Prompts longer than a chunk, and than the window.
_PROMPTS = [np.arange(300) * 7 % MIXED.vocab_size, np.array([3, 1, 4, 1, 5])]


def _written(runtime: Runtime, prompts: Sequence[NDArray[Any]], steps: int) -> NDArray[Any]:
    """Logits [rows, steps, vocab] of a greedy decode."""
    cache = runtime.new_cache(len(prompts), max(map(len, prompts)) + steps)
    new, logits = list(prompts), []
    for _ in range(steps):
        step, cache = runtime.decode(new, cache)
        logits.append(step.copy())
        new = list(step[:, -1].argmax(axis=-1)[:, None])
    return np.concatenate(logits, axis=1)


def _decoders() -> list[Runtime]:
    return [opened(MIXED, runtime=runtime) for runtime in ("executorch", "eager")]


def test_rows_of_different_lengths_are_eagers_past_window_and_chunk() -> None:
    logits, expected = (_written(x, _PROMPTS, 20) for x in _decoders())
    assert_logits_equal(logits, expected, MIXED)
    np.testing.assert_array_equal(logits.argmax(axis=-1), expected.argmax(axis=-1))


@pytest.mark.parametrize(
    "options",
    [{"batch": 2}, {"beam": 3, "n": 2}, {"temperature": 0.9, "n": 3, "top_p": 0.9}],
    ids=["greedy", "beams", "samples"],
)
def test_the_decoding_loop_writes_eagers_texts(options: dict[str, Any]) -> None:
    texts = []
    for runtime in _decoders():
        model = TextModel(runtime, Letters(), MIXED)
        generated = model.generate(["once upon a time.", "no"], max_new_tokens=24, **options)
        each = [
            text for texts in generated for text in (texts if isinstance(texts, list) else [texts])
        ]
        texts.append([(text.text, text.tokens) for text in each])
    assert texts[0] == texts[1]


def test_the_caller_in_cpp_writes_the_same_tokens(tmp_path: Path) -> None:
    prompt, steps = _PROMPTS[0], 12
    arguments = [str(bundle(MIXED, runtime="executorch") / FILE), str(steps), *map(str, prompt)]
    done = subprocess.run(
        [built("generate", tmp_path), *arguments], capture_output=True, text=True, check=True
    )
    logits = _written(opened(MIXED, runtime="executorch"), [prompt], steps)
    expected = logits[0].argmax(axis=-1).tolist()
    ends = [i for i, token in enumerate(expected) if token in SPECIAL_TOKENS["end_tokens"]]
    assert list(map(int, done.stdout.split())) == expected[: min([steps, *ends])]


def test_a_unilm_embeds_as_eager_does() -> None:
    runtime, eager = (opened(EXECUTORCH["unilm"], runtime=name) for name in ("executorch", "eager"))
    sources = [np.arange(9), np.array([3, 1, 4])]
    assert_logits_equal(runtime.embed(sources), eager.embed(sources), EXECUTORCH["unilm"])
