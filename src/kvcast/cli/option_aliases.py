"""Option names of other programs, for users who come from them.

An option with an equivalent is rewritten to kvcast's name before argparse sees it; for one without,
the error suggests an alternative. Options that a kvcast command has are not listed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvcast.errors import UsageError

_SWITCHED = frozenset({"true", "false", "none"})


@dataclass(frozen=True)
class _Translation:
    """The equivalent of an option."""

    words: Callable[[str, str | None], Sequence[str]]  # of an option and its value
    is_switch: bool = False  # the value is optional, and only True, False or None

    def takes(self, word: str) -> bool:
        return word.lower() in _SWITCHED if self.is_switch else not word.startswith("-")


def translated(command: str, words: Sequence[str]) -> list[str]:
    """Return a command's words with the options of other programs in kvcast's words.

    Raises UsageError for one without an equivalent. Words after a lone `--` are unchanged.
    """
    table = _TABLES.get(command, {})
    end = words.index("--") if "--" in words else len(words)
    return [*_translated(words[:end], table), *words[end:]]


def _translated(words: Sequence[str], table: Mapping[str, _Translation]) -> Iterator[str]:
    at = 0
    while at < len(words):
        name, equals, value = words[at].partition("=")
        at += 1
        if (translation := table.get(name)) is None:
            yield words[at - 1]
        elif equals:
            yield from translation.words(name, value)
        elif at < len(words) and translation.takes(words[at]):
            yield from translation.words(name, words[at])
            at += 1
        else:
            yield from translation.words(name, None)


def _one_of(values: Mapping[str, Sequence[str]], advice: str) -> _Translation:
    """Take some values, in any case, and advise where it is another; "" is none."""

    def words(name: str, value: str | None) -> Sequence[str]:
        ours = values.get((value or "").lower())
        if ours is None:
            shown = name if value is None else f"{name} {value}"
            raise UsageError(f"{shown} has no equal here: {advice}")
        return ours

    return _Translation(words, is_switch="" in values)


def _renamed(ours: str, divisor: int = 1) -> _Translation:
    """Rename the option, and divide its value by the ratio of units, if any."""

    def words(name: str, value: str | None) -> Sequence[str]:
        if value is None:
            raise UsageError(f"{name} needs a value; here it is {ours}")
        if divisor == 1:
            return [ours, value]
        try:
            return [ours, f"{float(value) / divisor:g}"]
        except ValueError:
            raise UsageError(f"{name} must be a number, not {value!r}") from None

    return _Translation(words)


def _positional(content: str) -> _Translation:
    def words(name: str, value: str | None) -> Sequence[str]:
        if value is None:
            raise UsageError(f"{name} needs a value: {content}")
        return [value]

    return _Translation(words)


def _switch(*ours: str) -> _Translation:
    return _one_of({"": ours, "true": ours, "false": ()}, "give True or False")


def _advised(advice: str) -> _Translation:
    return _one_of({}, advice)


_DEVICE = _one_of(
    {"cpu": (), "auto": ()},
    "kvcast's kernels run on the processor; leave it out, or open a bundle that "
    "kvcast export --runtime aoti --device cuda made",
)
_COMPUTE_TYPE = _one_of(
    {
        **dict.fromkeys(("default", "auto"), ()),
        **dict.fromkeys(("int8", "int8_float32"), ("--quantize", "int8")),
        **dict.fromkeys(("float32", "fp32"), ("--quantize", "none")),
    },
    "--quantize int8 is the default, none is fp32, and int4 is smallest",
)
_CACHE_FOLDER = _advised("models lie in the Hugging Face cache; HF_HUB_CACHE is its folder")
_GPU_LAYERS = _one_of({"0": ()}, "kvcast's kernels run on the processor; leave it out")
_CONTEXT = _advised("a cache is as long as its text, up to what the model can do; leave it out")

_RECORDINGS: Mapping[str, _Translation] = {
    # openai-whisper
    "--device": _DEVICE,
    "--model-dir": _CACHE_FOLDER,
    "--fp16": _one_of(
        {"false": (), "": ()}, "weights are int8 by default; --quantize none is fp32"
    ),
    "--verbose": _one_of({"true": (), "false": (), "": ()}, "leave it out, or add --quiet"),
    "--temperature-increment-on-fallback": _one_of(
        {"0.2": ()}, "list the temperatures to try: --temperature 0,0.2,0.4, or one"
    ),
    # faster-whisper and whisper-ctranslate2
    "--compute-type": _COMPUTE_TYPE,
    "--vad-filter": _switch("--vad"),
    "--vad-onset": _renamed("--vad-threshold"),
    "--vad-min-silence-duration-ms": _renamed("--min-silence", 1000),
    "--vad-speech-pad-ms": _renamed("--speech-pad", 1000),
    "--vad-max-speech-duration-s": _renamed("--max-speech"),
    "--batch-size": _renamed("--batch"),
    "--batched": _advised("--batch N decodes N windows at once"),
    "--download-root": _CACHE_FOLDER,
    # whisper.cpp
    "--output-txt": _switch("--format", "text"),
    "--output-srt": _switch("--format", "srt"),
    "--output-vtt": _switch("--format", "vtt"),
    "--output-json": _switch("--format", "json"),
    "--translate": _switch("--task", "translate"),
    "--prompt": _renamed("--initial-prompt"),
    "--offset-t": _renamed("--clip-start", 1000),
    "--no-gpu": _switch(),
}

_ALIGN_AND_DETECT: Mapping[str, _Translation] = {
    "--device": _DEVICE,
    "--compute-type": _COMPUTE_TYPE,
}

_TEXT: Mapping[str, _Translation] = {
    # llama.cpp
    "-p": _positional("the prompt"),
    "-n": _renamed("--max-new-tokens"),
    "--n-predict": _renamed("--max-new-tokens"),
    "--predict": _renamed("--max-new-tokens"),
    "--temp": _renamed("--temperature"),
    "--repeat-penalty": _renamed("--repetition-penalty"),
    "--file": _renamed("--prompt-file"),
    "--lora": _renamed("--adapter"),
    "--lora-scaled": _advised("--adapter FILE=0.5 merges half of an adapter"),
    "--grammar-file": _advised("--lark FILE takes a grammar; --json-schema and --regex are others"),
    "--n-gpu-layers": _GPU_LAYERS,
    "--gpu-layers": _GPU_LAYERS,
    "--ctx-size": _CONTEXT,
    # transformers, vLLM and optimum
    "--device": _DEVICE,
    "--max-tokens": _renamed("--max-new-tokens"),
    "--num-beams": _renamed("--beam"),
    "--num-return-sequences": _renamed("--n"),
}

_SERVER: Mapping[str, _Translation] = {
    # llama-server
    "--ctx-size": _CONTEXT,
    "--n-gpu-layers": _GPU_LAYERS,
    "--parallel": _renamed("--rows"),
    "--lora": _renamed("--adapter"),
    "--lora-scaled": _advised("--adapter FILE=0.5 merges half of an adapter"),
    # vLLM
    "--lora-modules": _advised("--adapter ADAPTER merges one into the weights"),
    "--device": _DEVICE,
    "--max-model-len": _CONTEXT,
    "--max-num-seqs": _renamed("--rows"),
    "--served-model-name": _advised("--alias NAME=MODEL gives a model a further name"),
}

_TABLES: Mapping[str, Mapping[str, _Translation]] = {
    "transcribe": _RECORDINGS,
    "align": _ALIGN_AND_DETECT,
    "detect": _ALIGN_AND_DETECT,
    "generate": _TEXT,
    "serve": _SERVER,
}
