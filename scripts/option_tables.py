"""Write tables of options, runtimes and models into the docs: `python scripts/option_tables.py`.

A table stands between two comments, of which the first says what it shows:

    <!-- flags: PromptParams, choice of tokens -->
    <!-- keywords: LoadParams -->
    <!-- runtimes -->
    <!-- models -->
    <!-- speech -->

Options come from the dataclasses in the modules named params: all of them, or
those of one group; as the command line or as Python spells them. A name after "without" is left
out. The JSON Schemas' lists of runtimes are written as well. With `--check` nothing is written; the
exit code is 1 if anything is not what it would be.
"""

import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from kvcast.cluster import params as cluster
from kvcast.loading import params as loading
from kvcast.loading.catalogue import catalogue
from kvcast.options import Choice, Declared, Params
from kvcast.quantizing import params as quantizing
from kvcast.server import params as server
from kvcast.spec.runtimes import RUNTIMES, RuntimeInfo
from kvcast.speech import params as speech
from kvcast.speech.abilities import ABILITIES
from kvcast.text import params as text
from kvcast.transcripts import params as transcripts
from kvcast.verification import params as verification

DOCS = Path(__file__).parents[1] / "docs"
SCHEMAS = (
    "doctor.schema.json",
    "folder.schema.json",
    "generation.schema.json",
    "language.schema.json",
    "models.schema.json",
    "transcript.schema.json",
)
BEGIN = (
    r"<!-- (?P<kind>flags|keywords): (?P<params>\w+)"
    r"(?:, (?P<group>[^:]*?))?(?: without (?P<without>[\w ]+))? -->"
)
END = "<!-- end of table -->"
ROWS = r"<!-- (?P<rows>runtimes|models|speech) -->"
TABLE = re.compile(rf"(?:{BEGIN}|{ROWS})\n.*?(?={END})", re.DOTALL)


def written(text: str) -> str:
    """Return a document with its tables as they should be."""
    return TABLE.sub(_table, text)


def enumerated(schema: str) -> str:
    """Return a JSON Schema whose lists of runtimes are those of the table."""
    names = ", ".join(f'"{name}"' for name in RUNTIMES)
    return re.sub(r'(?<="enum": \[)"onnx"(?:, "\w+")*', names, schema)


def _table(match: re.Match[str]) -> str:
    comment = match[0].splitlines()[0]
    if match["rows"]:
        tables = {"runtimes": runtime_table, "models": model_table, "speech": speech_table}
        lines = tables[match["rows"]]()
    else:
        rooms = (loading, text, speech, transcripts, server, cluster, quantizing, verification)
        declared: type[Params] = {k: v for room in rooms for k, v in vars(room).items()}[
            match["params"]
        ]
        without = (match["without"] or "").split()
        lines = option_table(
            declared, match["group"], as_flags=match["kind"] == "flags", without=without
        )
    return "\n".join([comment, *lines, ""])


def option_table(
    declared: type[Params], group: str | None, *, as_flags: bool, without: Collection[str] = ()
) -> Iterator[str]:
    """Yield the lines of a table of options, all or those of one group."""
    yield f"| {'option' if as_flags else 'keyword'} | default | meaning |"
    yield "| --- | --- | --- |"
    for option in declared.declared():
        if option.name not in without and group in (None, option.option.group):
            name = ", ".join(map(_code, _spelled(option) if as_flags else [option.name]))
            yield f"| {name} | {option.default_in_words} | {_meaning(option)} |"


def runtime_table() -> Iterator[str]:
    """Yield the lines of a table of runtimes and their precisions."""
    yield "| runtime | what it is | install | `quantize` | `dtype` | `cache` |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, runtime in RUNTIMES.items():
        install = f"`kvcast[{runtime.extra}]`" if runtime.extra else "`kvcast`"
        about = f"{runtime.title}: {runtime.summary}"
        yield f"| `{name}` | {about} | {install} | {' | '.join(_precisions(runtime))} |"


def model_table() -> Iterator[str]:
    """Yield the lines of a table of the types of models that are known."""
    yield "| family | type | formats | example |"
    yield "| --- | --- | --- | --- |"
    for family in catalogue().families:
        for kind in family.types:
            example = _code(kind.example) if kind.example else ""
            yield f"| {family.title} | `{kind.name}` | {', '.join(kind.formats)} | {example} |"


def speech_table() -> Iterator[str]:
    """Yield the lines of a table of what models of speech can do."""
    yield "| type | languages | the language is | hints | times of words | translates | live |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name, can in ABILITIES.items():
        abilities = (can.hints, can.words, can.translates, can.live)
        marks = " | ".join("yes" if able else "" for able in abilities)
        yield f"| `{name}` | {len(can.languages)} | {can.language} | {marks} |"


def _precisions(runtime: RuntimeInfo) -> Iterator[str]:
    yield _listed(runtime.quantize, runtime.default_quantize)
    yield _listed(runtime.dtypes, runtime.dtypes[0])
    yield _listed(runtime.caches, runtime.caches[0]) if runtime.caches else "as `dtype`"


def _listed(words: Collection[str], default: str) -> str:
    """Return words as code, the default in bold if there are others."""
    return ", ".join(
        f"**{_code(word)}**" if word == default and len(words) > 1 else _code(word)
        for word in words
    )


def _spelled(option: Declared) -> list[str]:
    if option.kind is bool and option.default:
        return [flag.replace("--", "--[no-]", 1) for flag in option.flags]
    return list(option.flags)


def _meaning(option: Declared) -> str:
    """Return the help, with the words to choose from unless it names them all."""
    check = option.option.check
    if isinstance(check, Choice) and not all(word in option.help for word in check.words()):
        words = [*check.words(), *filter(None, [check.file])]
        return f"{option.help}: {', '.join(map(_code, words))}"
    return option.help


def _code(word: str) -> str:
    return f"`{word}`"


def main(words: list[str]) -> int:
    """Write the tables, or check them; returns the exit code."""
    stale = []
    documents = [(path, written) for path in DOCS.glob("*.md")]
    documents += [(DOCS / name, enumerated) for name in SCHEMAS]
    for path, renew in documents:
        text = path.read_text(encoding="utf-8")
        if (new := renew(text)) != text:
            stale.append(path.name)
            if "--check" not in words:
                path.write_text(new, encoding="utf-8")
    for name in stale:
        print(f"docs/{name}: {'not current' if '--check' in words else 'written'}")
    return 1 if stale and "--check" in words else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
