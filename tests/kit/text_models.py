"""Text models for tests: scripted, with random logits, or with random weights.

And schemas that their output must match.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from kit.dimensions import LEAST_DECODER, LEAST_T5
from kit.letters import Dashes, LettersAlone, LetterTokenizer
from kit.models import opened
from kit.scripted_runtimes import RecomputingRuntime, ScriptedSources, Written, random_script
from kit.small_tokenizers import KINDS as DECODER_KINDS
from kit.small_tokenizers import bert_files, spiece_files, spiece_model, text_files
from kvcast.errors import UsageError
from kvcast.families.bart import BartDimensions
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.t5 import T5Dimensions
from kvcast.families.t5gemma import T5GemmaDimensions
from kvcast.families.unilm import UnilmDimensions
from kvcast.text.model import TextModel
from kvcast.text.text2text import BartModel, T5GemmaModel, T5Model, UnilmModel
from kvcast.tokenizers.base import TextTokenizer
from kvcast.tokenizers.byt5 import ByteTokenizer
from kvcast.tokenizers.opening import open_text


def saying(
    answer: str | Callable[[str], str],
    positions: int = 2000,
    before_step: Callable[[], Any] = lambda: None,
    tokenizer: LetterTokenizer | None = None,
) -> TextModel:
    """Return a model that answers so, whatever is asked, or as a function of the prompt.

    `before_step` is called before each row's logits are computed.
    """
    tokenizer = tokenizer or LetterTokenizer()

    def logits(written: Written) -> Any:
        before_step()
        logits_sv = np.full((len(written), tokenizer.vocab_size), -30, np.float32)
        said = "".join(map(tokenizer.spelled, written))
        prompt, _, begun = said.rpartition(tokenizer.answer)
        whole = answer if isinstance(answer, str) else answer(prompt)
        rest = whole.removeprefix(begun) if whole.startswith(begun) else ""
        logits_sv[-1, tokenizer.next_token(rest)] = 0
        return logits_sv

    dimensions = replace(decoder_dimensions(tokenizer.vocab_size), max_positions=positions)
    return TextModel(RecomputingRuntime(logits), tokenizer, dimensions)


_KINDS: dict[type, type] = {
    BartDimensions: BartModel,
    DecoderDimensions: TextModel,
    T5Dimensions: T5Model,
    T5GemmaDimensions: T5GemmaModel,
    UnilmDimensions: UnilmModel,
}


def model(dimensions: Any, runtime: str, quantize: str = "none") -> Any:
    """Return the model of these dimensions; its runtime is opened once."""
    kind = _KINDS[type(dimensions)]
    return kind(opened(dimensions, quantize, runtime), Dashes(dimensions.vocab_size), dimensions)


def prompt(length: int, seed: int) -> list[int]:
    """Return random token ids."""
    return np.random.default_rng(seed).integers(3, 150, length).tolist()


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread does; it may be a slow machine."""
    for _ in range(60_000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it did not come to pass")


def same(texts: Any) -> Any:
    """Return all but times, drafts and the model's own defaults, to compare."""
    if isinstance(texts, list):
        return [same(text) for text in texts]
    parts = vars(texts) | {"timings": None, "generation_config": None, "draft": None}
    return tuple(parts.values())


def refused(say: Callable[[], object], says: str) -> None:
    """Check that a request is refused in one line."""
    with pytest.raises(UsageError) as error:
        say()
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


POSITIONS = 3000
PADDING = 3  # tables have more rows than tokens
SOURCES = {
    "byt5": lambda: ByteTokenizer([1]),
    "spiece": lambda: open_text(spiece_files(spiece_model(byte_fallback=True, vocab_size=500))),
}
KINDS = (*DECODER_KINDS, *SOURCES, "unilm")


def decoder_dimensions(size: int) -> DecoderDimensions:
    return replace(LEAST_DECODER, vocab_size=size, max_positions=POSITIONS)


def text_model(tokenizer: TextTokenizer, seed: int = 0) -> TextModel:
    size = tokenizer.vocab_size + PADDING
    runtime = RecomputingRuntime(_random_logits(size, seed))
    return TextModel(runtime, tokenizer, decoder_dimensions(size))


def _random_logits(size: int, seed: int) -> Any:
    """Logits that depend on the last tokens; only the last positions' are filled in."""

    @cache
    def after(last: tuple[int, ...]) -> Any:
        return np.random.default_rng((seed, *last)).normal(0, 2, size).astype(np.float32)

    def logits(written: tuple[int, ...]) -> Any:
        logits_sv = np.zeros((len(written), size), np.float32)
        for end in range(max(1, len(written) - 8), len(written) + 1):
            logits_sv[end - 1] = after(written[max(0, end - 4) : end])
        return logits_sv

    return logits


def t5_model(tokenizer: TextTokenizer, seed: int = 0) -> T5Model:
    size = tokenizer.vocab_size + PADDING
    dimensions = replace(
        LEAST_T5,
        vocab_size=size,
        start_token=0,
        source_positions=POSITIONS,
        target_positions=POSITIONS,
    )
    script = random_script(size, seed, lambda _: {})
    return T5Model(ScriptedSources(script, context=POSITIONS), tokenizer, dimensions)


class Embedding(RecomputingRuntime):
    """Ranks several texts."""

    def embed(self, sources: Any) -> Any:
        return np.stack([np.bincount(source, minlength=600) for source in sources], dtype="f4")


def unilm_model(tokenizer: TextTokenizer, seed: int = 0) -> UnilmModel:
    size = tokenizer.vocab_size + PADDING
    return UnilmModel(Embedding(_random_logits(size, seed)), tokenizer, decoder_dimensions(size))


@cache
def model_of(kind: str, seed: int = 0) -> Any:
    if kind == "unspelled":
        return text_model(LettersAlone(), seed)
    if kind in SOURCES:
        return t5_model(SOURCES[kind](), seed)
    if kind == "unilm":  # its published tokenizers are word pieces; any other would do
        return unilm_model(open_text(text_files(DECODER_KINDS["byte-level"]())), seed)
    return text_model(open_text(text_files(DECODER_KINDS[kind]())), seed)


def word_piece_model() -> UnilmModel:
    return unilm_model(open_text(bert_files()))


NAMES = st.text('ab "\\/\n\u00e9\u2028\U0001f642', max_size=3)
BOUNDS = st.integers(-150, 150)


PATTERNS = ("^[a-c]{1,3}$", '^[^"]{1,3}$', r"^[^\\-]{2}$", r"^\d{2}:\d{2}$", "^.{0,2}$")


def _strings() -> Any:
    lengths = st.tuples(st.integers(0, 3), st.integers(0, 3))
    return st.one_of(
        lengths.map(lambda two: {"type": "string", "minLength": two[0], "maxLength": sum(two)}),
        st.sampled_from(PATTERNS).map(lambda pattern: {"type": "string", "pattern": pattern}),
        st.sampled_from(["date", "time", "ipv4", "uuid"]).map(
            lambda name: {"type": "string", "format": name}
        ),
    )


def _integers() -> Any:
    return st.builds(
        lambda low, more, step: {"type": "integer", "minimum": low, "maximum": low + more} | step,
        BOUNDS,
        st.integers(8, 50),
        st.sampled_from([{}, {"multipleOf": 3}]),
    )


def _objects(parts: Any) -> Any:
    def made(properties: dict[str, Any], chosen: list[bool]) -> dict[str, Any]:
        required = [name for name, is_it in zip(properties, chosen, strict=False) if is_it]
        whole = {"type": "object", "properties": properties, "additionalProperties": False}
        return whole | {"required": required}

    several = st.dictionaries(NAMES, parts, max_size=3)
    return st.builds(made, several, st.lists(st.booleans(), min_size=3, max_size=3))


SCALARS = st.one_of(
    _strings(),
    _integers(),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"const": {"a": [1, "\n"]}}]),
    st.lists(st.one_of(NAMES, BOUNDS, st.none()), min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
)
_PLAIN = st.recursive(
    SCALARS,
    lambda parts: st.one_of(
        _objects(parts),
        st.tuples(parts, st.integers(0, 2)).map(
            lambda two: {"type": "array", "items": two[0], "maxItems": two[1]}
        ),
        st.lists(parts, min_size=1, max_size=2).map(lambda several: {"anyOf": several}),
        parts.map(lambda part: {"allOf": [part]}),
    ),
    max_leaves=4,
)
SCHEMAS = st.one_of(
    _PLAIN, _PLAIN.map(lambda schema: {"$defs": {"it": schema}, "$ref": "#/$defs/it"})
)
"""Schemas whose JSON is short, so that a model of random logits comes to its end."""
