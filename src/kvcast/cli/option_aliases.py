"""Rewrites options of other programs (`kvcast.foreign_options`) before argparse sees them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvcast.errors import UsageError
from kvcast.foreign_options import LOADING, RECORDINGS, SERVER, TEXT, Foreign, ForeignOptions

_SWITCHED = frozenset({"true", "false", "none"})
_OUTPUT: ForeignOptions = {
    f"output_{name}": Foreign(values={"": {"format": ours}, "true": {"format": ours}, "false": {}})
    for name, ours in {"txt": "text", "srt": "srt", "vtt": "vtt", "json": "json"}.items()
}  # of whisper.cpp
_CHAT = Foreign(advice="kvcast chat talks with a model in the terminal")
_NEW_TOKENS = Foreign(ours="max_new_tokens")
_ONCE = Foreign(advice="kvcast chat MODEL PROMPT answers once, and so does kvcast generate")
_LLAMA_CLI: ForeignOptions = {
    "-n": _NEW_TOKENS,
    "-t": Foreign(ours="threads"),
    "-sys": Foreign(ours="system"),
    "-c": LOADING["ctx_size"],
    "-ngl": LOADING["n_gpu_layers"],
}
_TABLES: Mapping[str, ForeignOptions] = {
    "transcribe": {**LOADING, **RECORDINGS, **_OUTPUT},
    "align": LOADING,
    "detect": LOADING,
    "generate": {
        **LOADING,
        **TEXT,
        "file": Foreign(ours="prompt_file"),
        "interactive": _CHAT,
        "conversation": _CHAT,
    },
    "chat": {**LOADING, **TEXT},
    "serve": {**LOADING, **SERVER, "model": Foreign()},
}
_SHORT: Mapping[str, Mapping[str, Foreign]] = {
    "transcribe": {
        "-l": Foreign(ours="language"),
        **{f"-o{name}": _OUTPUT[f"output_{name}"] for name in ("txt", "srt", "vtt")},
    },
    "generate": {**_LLAMA_CLI, "-p": Foreign(), "-i": _CHAT, "-cnv": _CHAT},
    "chat": {**_LLAMA_CLI, "-p": _ONCE},
    "serve": {"-m": Foreign()},
}
"""Options of one letter; one without an equivalent is the positional argument."""


def translated(command: str, words: Sequence[str]) -> list[str]:
    """Return a command's words with the options of other programs in kvcast's words.

    Raises UsageError for one without an equivalent. Words after a lone `--` are unchanged.
    """
    end = words.index("--") if "--" in words else len(words)
    return [*_translated(words[:end], aliases(command)), *words[end:]]


def aliases(command: str) -> dict[str, Foreign]:
    """Return what options of other programs, as they are given, are in a command."""
    table = _TABLES.get(command, {})
    return {_flag(name): foreign for name, foreign in table.items()} | dict(_SHORT.get(command, {}))


def words_of(name: str, value: str | None, foreign: Foreign) -> list[str]:
    """Return the words for an option of another program; raises UsageError if there are none."""
    if foreign.values or foreign.advice:
        ours = foreign.values.get((value or "").lower())
        if ours is None:
            shown = name if value is None else f"{name} {value}"
            advice = foreign.advice.format_map(_Flags()) or "give True or False"
            raise UsageError(f"{shown} has no equal here: {advice}")
        return [word for option, given in ours.items() for word in _given(option, given)]
    if value is None:
        here = f"; here it is {_flag(foreign.ours)}" if foreign.ours else ": the prompt"
        raise UsageError(f"{name} needs a value{here}")
    if not foreign.ours:
        return [value]
    if foreign.divisor == 1:
        return [_flag(foreign.ours), value]
    try:
        return [_flag(foreign.ours), f"{float(value) / foreign.divisor:g}"]
    except ValueError:
        raise UsageError(f"{name} must be a number, not {value!r}") from None


class _Flags(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return _flag(name)


def _translated(words: Sequence[str], table: Mapping[str, Foreign]) -> Iterator[str]:
    at = 0
    while at < len(words):
        name, equals, value = words[at].partition("=")
        at += 1
        if (foreign := table.get(name)) is None:
            yield words[at - 1]
        elif equals:
            yield from words_of(name, value, foreign)
        elif at < len(words) and _takes(foreign, words[at]):
            yield from words_of(name, words[at], foreign)
            at += 1
        else:
            yield from words_of(name, None, foreign)


def _takes(foreign: Foreign, word: str) -> bool:
    """Whether a word is the option's value; that of a switch is True, False or None."""
    return word.lower() in _SWITCHED if "" in foreign.values else not word.startswith("-")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _given(option: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [_flag(option if value else f"no_{option}")]
    return [_flag(option), str(value)]
