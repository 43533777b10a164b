"""The prompt of a Whisper decoder: words to expect, the text before, the task.

The layout is that of openai/whisper's decoding.py; hotwords and the order before a prefix
are faster-whisper's. Knows no search and no sound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from kvcast.errors import UsageError
from kvcast.speech.params import WindowParams
from kvcast.whisper.tokenizer import WhisperTokenizer


@dataclass(frozen=True, kw_only=True)
class WindowPrompt:
    """The parts of a prompt, in this order.

    Attributes:
        before: hotwords and the end of the text before, behind the token that announces them; may
            be empty.
        task: from the start of the transcript on.
        written: known tokens at the transcript's beginning, the prefix first.

    """

    before: tuple[int, ...]
    task: tuple[int, ...]
    written: tuple[int, ...]

    @classmethod
    def of(
        cls,
        params: WindowParams,
        language: str,
        *,
        previous: Sequence[int],
        written: Sequence[int] = (),
        tokenizer: WhisperTokenizer,
        context: int,
    ) -> Self:
        """Put a prompt together.

        Args:
            params: options for its parts.
            language: a code.
            previous: tokens of the text before; its end is kept as far as there is room.
            written: tokens of the transcript that are known, behind the prefix.
            tokenizer: of the model.
            context: positions of its decoder.

        Raises:
            UsageError: hotwords or a prefix that are too long.

        """
        hotwords = _hotwords(params, tokenizer, context)
        room = _room_before(context) - len(hotwords)
        before = [*hotwords, *previous[max(0, len(previous) - room) :]]
        return cls(
            before=(tokenizer.sot_prev, *before) if before else (),
            task=tokenizer.sot_sequence(language, params.task, timestamps=params.timestamps),
            written=(*_prefix(params, tokenizer, context), *written),
        )

    @property
    def tokens(self) -> tuple[int, ...]:
        """All of it."""
        return (*self.before, *self.task, *self.written)


def check_prompt(params: WindowParams, tokenizer: WhisperTokenizer, context: int) -> None:
    """Raise UsageError for hotwords or a prefix that are too long."""
    _hotwords(params, tokenizer, context)
    _prefix(params, tokenizer, context)


def cut_notices(
    initial: Sequence[int], params: WindowParams, tokenizer: WhisperTokenizer, context: int
) -> tuple[str, ...]:
    """Return a notice if the initial prompt, of these tokens, is longer than fits."""
    room = _room_before(context) - len(_hotwords(params, tokenizer, context))
    if len(initial) <= room:
        return ()
    beside = " beside the hotwords" if params.hotwords is not None else ""
    return (
        f"the initial prompt is cut: of its {len(initial)} tokens, the last {room} fit{beside}, "
        f"and {len(initial) - room} are left out",
    )


def _hotwords(params: WindowParams, tokenizer: WhisperTokenizer, context: int) -> list[int]:
    if params.hotwords is None:
        return []
    return _limited("hotwords", params.hotwords, tokenizer, _room_before(context))


def _prefix(params: WindowParams, tokenizer: WhisperTokenizer, context: int) -> tuple[int, ...]:
    if params.prefix is None:
        return ()
    # Half of what a window's text may have.
    written = _limited("prefix", params.prefix, tokenizer, context // 4)
    return (tokenizer.timestamp_begin, *written) if params.timestamps else tuple(written)


def _limited(name: str, text: str, tokenizer: WhisperTokenizer, most: int) -> list[int]:
    tokens = tokenizer.encode(" " + text.strip())
    if len(tokens) > most:
        raise UsageError(
            f"{name} may have {most} tokens with this model, not {len(tokens)}: shorten it"
        )
    return tokens


def _room_before(context: int) -> int:
    """Return how many tokens may precede the task, besides the one that announces them."""
    return context // 2 - 1
