"""Opens a bundle and lets it generate a few tokens, in a process that a crash may end.

Knows no family and no runtime.
"""

import contextlib

import numpy as np

from kvcast.errors import UsageError
from kvcast.loading.opening import Model, open_model
from kvcast.loading.params import LoadParams

# For a chunk and a step, for a step alone, and for vocabularies without Latin letters.
_PROMPTS = ("The quick brown fox jumps over the lazy dog. " * 4, "fox", "的")


def open_and_call(bundle: str, runtime: str, trust: str = "") -> None:
    """Open a bundle and call it; raises KvcastError, and a broken package may raise anything."""
    params = LoadParams(runtime=runtime, threads=1, trust=bool(trust))
    opened = open_model(bundle, params, isolate=False)
    call_once(opened.model)


def call_once(model: Model) -> None:
    """Let a model generate a few tokens; raises KvcastError."""
    if model.task == "transcribe":
        noise = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)
        list(
            model.transcribe(
                noise,
                temperature=0,
                max_new_tokens=2,
                no_speech_threshold=None,
                logprob_threshold=None,
            )
        )
        return
    for prompt in _PROMPTS:
        with contextlib.suppress(UsageError):  # longer than the model's context, or no token at all
            model.generate(prompt, max_new_tokens=2)
