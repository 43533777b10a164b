"""Proves that an exported model gives the same results as its programs without a cache.

The candidate generates tokens one by one through its caches. The reference processes them all at
once in eager fp32, so none of its results comes from a cached step. Knows only the programs.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.runtimes.base import EncoderDecoder, Float32, Int64, Runtime
from kvcast.runtimes.eager.decoder import EagerDecoderOnly
from kvcast.runtimes.eager.runtime import EagerEncoderDecoder

if TYPE_CHECKING:
    from kvcast.models.programs.decoder import DecoderPrograms
    from kvcast.models.programs.t5 import T5Programs
    from kvcast.models.programs.unilm import UnilmPrograms
    from kvcast.models.programs.whisper import WhisperPrograms

# Largest difference of fp32 logits that comes from summing in another order; 1e-4 was seen.
TOLERANCE = 1e-3
_PROMPT, _STEPS, _INPUTS = 4, 28, 2
_LONGEST_PROMPT = 600
_SOURCE = 40


def prove_whisper(
    candidate: EncoderDecoder, programs: "WhisperPrograms", *, exact: bool
) -> dict[str, Any]:
    """Compare greedy tokens, logits and alignment of two inputs; return the manifest's record.

    Args:
        candidate: the exported programs, run by their runtime.
        programs: the same model in eager fp32.
        exact: refuse a candidate whose tokens or logits differ (fp32 bundles).

    Raises:
        KvcastError: the reference's logits are not all finite, the candidate's results contain NaN,
            or `exact` is set and the candidate differs.

    """
    dimensions = programs.dimensions
    generator = np.random.default_rng(0)
    frames = 2 * dimensions.source_positions
    features_bmt = generator.uniform(-1, 1, (_INPUTS, dimensions.n_mels, frames))
    prompt_rs = generator.integers(0, dimensions.vocab_size, (_INPUTS, _PROMPT))
    source = (features_bmt.astype(np.float32),)
    record = _compare(candidate, programs, source, prompt_rs, exact=exact)
    error = _alignment_error(candidate, programs, source, prompt_rs)
    if np.isnan(error) or (exact and error > TOLERANCE):
        raise KvcastError(
            f"the exported graphs differ from the model: scores of alignment heads are off by up "
            f"to {error:.2g}; please report this with the model's name"
        )
    return {**record, "max_score_error": error}


def _alignment_error(
    candidate: EncoderDecoder,
    programs: "WhisperPrograms",
    source: tuple[NDArray[Any], ...],
    tokens_rs: Int64,
) -> float:
    """Return the largest difference of the scores of each input's tokens."""
    found, expected = (
        [
            runtime.align(tokens_s, cache, row).scores_hst.copy()
            for row, tokens_s in enumerate(tokens_rs)
        ]
        for runtime in (candidate, EagerEncoderDecoder(programs))
        for cache in [_encoded(runtime, source, tokens_rs.shape[1])]
    )
    return float(np.abs(np.stack(found) - np.stack(expected)).max())


def prove_t5(candidate: EncoderDecoder, programs: "T5Programs", *, exact: bool) -> dict[str, Any]:
    """Compare greedy tokens and logits of two sources of different lengths; as `prove_whisper`."""
    dimensions = programs.dimensions
    generator = np.random.default_rng(0)
    lengths_b = np.array([_SOURCE, _SOURCE // 2], np.int32)
    source_bt = generator.integers(0, dimensions.vocab_size, (len(lengths_b), _SOURCE))
    prompt_rs = np.full((len(lengths_b), 1), dimensions.start_token)
    return _compare(candidate, programs, (source_bt, lengths_b), prompt_rs, exact=exact)


def prove_decoder(
    candidate: Runtime, programs: "DecoderPrograms", *, exact: bool
) -> dict[str, Any]:
    """Compare greedy tokens and logits of two prompts; otherwise as `prove_whisper`.

    Prompts are as long as the longest window of up to 600 positions, if the model has that many
    positions, so every step wraps around its ring. Rings of longer windows do not wrap here.
    """
    dimensions = programs.dimensions
    windows = [window for window in dimensions.windows if window and window <= _LONGEST_PROMPT]
    length = max(min(max(windows, default=_PROMPT), dimensions.max_positions - _STEPS), 1)
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, dimensions.vocab_size, length) for _ in range(_INPUTS)]
    steps = _steps(dimensions.max_positions, length)
    cache = _empty(candidate, prompts, steps)
    written_rs, stepped_rsv = _continued(candidate, cache, prompts, steps)
    reference = EagerDecoderOnly(programs)
    whole = [np.concatenate([prompts[i], written_rs[i, :-1]]) for i in range(_INPUTS)]
    whole_rsv, _ = reference.decode(
        whole,
        reference.new_cache(_INPUTS, length + steps - 1),
        positions=range(length - 1, length + steps - 1),
    )
    return _record(written_rs, stepped_rsv, whole_rsv, exact=exact)


def prove_unilm(candidate: Runtime, programs: "UnilmPrograms", *, exact: bool) -> dict[str, Any]:
    """Compare greedy tokens and logits of two sources of different lengths; as `prove_whisper`."""
    dimensions = programs.dimensions
    longest = max(min(_SOURCE, dimensions.max_positions - _STEPS), min(2, dimensions.max_positions))
    lengths = [longest, max(longest // 2, 1)]
    generator = np.random.default_rng(0)
    sources = [generator.integers(0, dimensions.vocab_size, length) for length in lengths]
    steps = _steps(dimensions.max_positions, longest)
    cache = _empty(candidate, sources, steps)
    written_rs, stepped_rsv = _continued(candidate, cache, sources, steps)
    rows = zip(sources, written_rs, strict=True)
    wholes = [programs.whole(source, target[:-1]) for source, target in rows]
    whole_rsv = np.stack([whole_sv[-steps:] for whole_sv in wholes])
    return _record(written_rs, stepped_rsv, whole_rsv, exact=exact)


def _compare(
    candidate: EncoderDecoder,
    programs: "WhisperPrograms | T5Programs",
    source: tuple[NDArray[Any], ...],
    prompt_rs: Int64,
    *,
    exact: bool,
) -> dict[str, Any]:
    prompt = prompt_rs.shape[1]
    steps = _steps(programs.dimensions.target_positions, prompt)
    capacity = prompt + steps - 1
    written_rs, stepped_rsv = _continued(
        candidate, _encoded(candidate, source, capacity), list(prompt_rs), steps
    )
    reference = EagerEncoderDecoder(programs)
    whole_rsv, _ = reference.decode(
        list(np.concatenate([prompt_rs, written_rs[:, :-1]], axis=1)),
        _encoded(reference, source, capacity),
        positions=range(prompt - 1, capacity),
    )
    return _record(written_rs, stepped_rsv, whole_rsv, exact=exact)


def _record(
    written_rs: Int64, stepped_rsv: Float32, whole_rsv: Float32, *, exact: bool
) -> dict[str, Any]:
    if not np.isfinite(whole_rsv).all():
        raise KvcastError("the model's logits are not all finite: fetch its weights again")
    error = float(np.abs(stepped_rsv - whole_rsv).max())
    # A token counts as equal if its logit is within the tolerance of the reference's best.
    chosen_rs = np.take_along_axis(whole_rsv, written_rs[..., None], axis=-1)[..., 0]
    equal = int((chosen_rs >= whole_rsv.max(axis=-1) - TOLERANCE).sum())
    if np.isnan(error) or (exact and (error > TOLERANCE or equal < written_rs.size)):
        raise KvcastError(
            f"the exported graphs differ from the model: {equal} of {written_rs.size} tokens "
            f"equal, logits off by up to {error:.2g}; please report this with the model's name"
        )
    return {
        "reference": "eager fp32, all tokens at once",
        "tokens": written_rs.size,
        "tokens_equal": equal,
        "max_logit_error": error,
    }


def _steps(positions: int, prompt: int) -> int:
    """Return how many tokens to generate; the last one is not fed, so it needs no position."""
    return min(_STEPS, positions - prompt + 1)


def _empty(runtime: Runtime, prompts: Sequence[Int64], steps: int) -> Any:
    """Return a cache for prompts and what is generated after them."""
    return runtime.new_cache(len(prompts), max(map(len, prompts)) + steps - 1)


def _encoded(runtime: EncoderDecoder, source: tuple[NDArray[Any], ...], capacity: int) -> Any:
    """Return a cache with a row for each input."""
    inputs = range(len(source[0]))
    cache = runtime.new_cache(len(inputs), capacity, inputs=len(inputs))
    return runtime.reset(runtime.encode(cache, inputs, *source), inputs, inputs)


def _continued(
    runtime: Runtime, cache: Any, prompts: Sequence[Int64], steps: int
) -> tuple[Int64, Float32]:
    """Return the generated tokens [rows, steps] and their logits."""
    new, logits, written = list(prompts), [], []
    for _ in range(steps):
        step, cache = runtime.decode(new, cache)
        logits.append(step.copy())
        written.append(step[:, -1].argmax(axis=-1))
        new = list(written[-1][:, None])
    return np.stack(written, axis=1), np.concatenate(logits, axis=1)
