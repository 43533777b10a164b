"""Prompts for `kvcast generate`: from an argument, a file, standard input, or one a line.

All of them are read and checked before a model is loaded.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcast.cli.opening import STANDARD_INPUT, shown
from kvcast.errors import InputMissingError, InputOutputError, UsageError

if TYPE_CHECKING:
    from kvcast.text.texts import TextGeneration


JSON_LINES = frozenset({".jsonl", ".ndjson"})
PLAIN_LINES = frozenset({".txt"})


@dataclass(frozen=True, kw_only=True)
class PromptLine:
    """One prompt; `place` is its position in the file, for messages, and "" for a single prompt."""

    text: str
    id: str | int | None = None
    system: str | None = None
    place: str = ""

    def with_system(self, system: str | None) -> "PromptLine":
        return self if self.system is not None else replace(self, system=system)


def given(text: str) -> PromptLine:
    """Return a prompt that was an argument; raises UsageError if it is empty or not UTF-8."""
    if not is_text(text):
        raise UsageError("the prompt is not valid UTF-8")
    return _filled(PromptLine(text=text))


def read_prompt(source: str) -> PromptLine:
    """Read a whole file, or standard input, as one prompt, without its last line end.

    Raises InputMissingError, InputOutputError, and UsageError if it is empty.
    """
    text = read_text(source).removesuffix("\n").removesuffix("\r")
    return _filled(PromptLine(text=text, place=shown(source)))


def read_prompts(source: str) -> list[PromptLine]:
    """Read one prompt a line, plain or JSON Lines; blank lines are skipped.

    A name that ends with .jsonl or .ndjson holds JSON, .txt plain text; any other name holds JSON
    if its first line begins with { or ". Errors name the line. Raises InputMissingError,
    InputOutputError, and UsageError where there is no prompt.
    """
    lines = list(_lines(read_text(source)))
    if not lines:
        raise UsageError(f"{shown(source)} holds no prompt")
    read = _prompt_of_json if _holds_json(source, lines[0][1]) else _prompt_of_text
    return [_filled(read(line, f"{shown(source)}, line {number}")) for number, line in lines]


def is_text(value: Any) -> bool:
    """Return whether it is a string without lone surrogates, which no UTF-8 can hold."""
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


def read_text(source: str) -> str:
    """Read a whole file, or standard input; raises InputMissingError and InputOutputError."""
    try:
        content = _standard_input() if source == STANDARD_INPUT else Path(source).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise InputMissingError(f"{source}: there is no such file") from None
    except OSError as error:
        raise InputOutputError(f"cannot read {shown(source)}: {error.strerror}") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputOutputError(f"{shown(source)}, line {line}: is not valid UTF-8") from None


def read_grammars(args: argparse.Namespace) -> None:
    """Put the content of files into options that take a schema or a grammar; raises as above."""
    if args.json_schema is not None and not args.json_schema.lstrip().startswith("{"):
        args.json_schema = read_text(args.json_schema)
    if args.lark is not None:
        args.lark = read_text(args.lark)


def _standard_input() -> bytes:
    if sys.stdin is None:
        raise UsageError("standard input (-) is closed: pipe a prompt in")
    return sys.stdin.buffer.read()


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield line numbers, from 1, and lines without their ends, skipping blank ones."""
    # Not splitlines: it also splits at U+2028 and others, which JSON and prose may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.removesuffix("\r")


def _holds_json(source: str, first_line: str) -> bool:
    suffix = Path(source).suffix.lower()
    if suffix in JSON_LINES | PLAIN_LINES:
        return suffix in JSON_LINES
    return first_line.lstrip().startswith(("{", '"'))


def _prompt_of_text(line: str, place: str) -> PromptLine:
    return PromptLine(text=line, place=place)


def _prompt_of_json(line: str, place: str) -> PromptLine:
    try:
        value = json.loads(line)
    except RecursionError:
        raise InputOutputError(f"{place}: is nested too deeply") from None
    except ValueError as error:
        raise InputOutputError(f"{place}: is not JSON: {error}") from None
    fields = {"prompt": value} if isinstance(value, str) else value
    if not isinstance(fields, dict):
        raise InputOutputError(f"{place}: must be a JSON string or an object with a prompt")
    if "prompt" not in fields:
        raise InputOutputError(f'{place}: the object has no "prompt"')
    for name, content in fields.items():
        if name not in _FIELDS:
            raise InputOutputError(
                f'{place}: unknown field "{name}"; an object holds prompt, id and system'
            )
        accepts, wanted = _FIELDS[name]
        if not accepts(content):
            raise InputOutputError(f'{place}: "{name}" must be {wanted}')
    return PromptLine(
        text=fields["prompt"], id=fields.get("id"), system=fields.get("system"), place=place
    )


def _is_id(value: Any) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value is None or is_whole or is_text(value)


def _is_system(value: Any) -> bool:
    return value is None or is_text(value)


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "prompt": (is_text, "a string of valid characters"),
    "id": (_is_id, "a string or a whole number"),
    "system": (_is_system, "a string of valid characters"),
}


def _filled(prompt: PromptLine) -> PromptLine:
    if not prompt.text:
        raise UsageError(f"{prompt.place}: the prompt is empty".removeprefix(": "))
    return prompt


JSON_FORMAT = "kvcast.generation"
JSON_VERSION = 5


def document(
    prompt: PromptLine,
    texts: "Sequence[TextGeneration]",
    *,
    model: str,
    runtime: str,
    conversation: Mapping[str, Any],
    logprobs: bool,
) -> dict[str, Any]:
    """Return a prompt's document; `conversation`: if it was a chat, with which system text."""
    first, *others = [_fields(text, logprobs=logprobs) for text in texts]
    return {
        "format": JSON_FORMAT,
        "version": JSON_VERSION,
        "id": prompt.id,
        "model": model,
        "runtime": runtime,
        "prompt": prompt.text,
        **conversation,
        "prompt_tokens": texts[0].prompt_tokens,
        "generation_config": dict(texts[0].generation_config),
        **first,
        "alternatives": others,
    }


def _fields(text: "TextGeneration", *, logprobs: bool) -> dict[str, Any]:
    from kvcast.transcripts.writers import draft_fields, json_number

    timings = text.timings
    return {
        "text": text.text,
        "tokens": [int(token) for token in text.tokens],
        "logprobs": [json_number(value) for value in text.logprobs or ()] if logprobs else None,
        "top_logprobs": _alternatives(text),
        "finish_reason": text.finish_reason,
        "score": None if text.score is None else json_number(text.score),
        "similarity": None if text.similarity is None else json_number(text.similarity),
        "draft": draft_fields(text.draft),
        "timings": {
            "first_token": json_number(timings.first_token),
            "seconds": json_number(timings.seconds),
            "per_token": json_number(timings.per_token),
            "tokens_per_second": json_number(timings.tokens_per_second),
        },
    }


def _alternatives(text: "TextGeneration") -> list[list[dict[str, Any]]] | None:
    from kvcast.transcripts.writers import json_number

    if text.top_logprobs is None:
        return None
    return [
        [{"token": token, "logprob": json_number(logprob)} for token, logprob in top]
        for top in text.top_logprobs
    ]


def speed(texts: "Sequence[TextGeneration]") -> str:
    """Return the time to first token, the mean time of later ones, and the total throughput."""
    timings = [text.timings for text in texts]
    later = [timing.per_token for timing in timings if timing.per_token > 0]
    per_token = sum(later) / max(1, len(later))
    seconds = max(timing.seconds for timing in timings)
    generated = sum(timing.tokens_per_second * timing.seconds for timing in timings)
    tokens = sum(len(text.tokens) for text in texts)
    several = f" in {len(texts)} texts" if len(texts) > 1 else ""
    drafts = [text.draft for text in texts if text.draft is not None]
    checked = f", {drafts[0].total(drafts)}" if drafts else ""
    cut = ", cut at the most new tokens" if texts[-1].finish_reason == "length" else ""
    return (
        f"{tokens} {'token' if tokens == 1 else 'tokens'}{several}: "
        f"first token after {min(timing.first_token for timing in timings):.3f} s, "
        f"{1000 * per_token:.1f} ms per token, "
        f"{generated / seconds if seconds > 0 else 0.0:.1f} tokens/s{checked}{cut}"
    )
