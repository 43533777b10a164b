"""The result of a verification: checks and their measurements, as text, JSON and JUnit XML."""

import json
import math
import re
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

JSON_FORMAT = "kvcast.verification"
JSON_VERSION = 1

Outcome: TypeAlias = Literal["passed", "failed", "skipped", "noted"]

_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WIDTH, _NAMES = 96, 18
_MARKS: Mapping[Outcome, str] = {
    "passed": "ok",
    "failed": "FAILED",
    "skipped": "-",
    "noted": "note",
}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of a model, and its outcome."""

    name: str
    outcome: Outcome  # "skipped": not made or not applicable; "noted": neither right nor wrong
    detail: str  # one line: the comparison; the error and its place; or the reason for skipping
    measured: Mapping[str, Any] = field(default_factory=dict)  # by name; also NumPy's types


@dataclass(frozen=True, kw_only=True)
class Report:
    subject: str  # the model, as its user names it
    runtime: str
    precision: str  # in words, such as "int8 weights, fp32, fp16 caches"
    reference: str  # in words
    checks: Sequence[Check]
    tools: Mapping[str, str]  # versions of libraries, by name

    @property
    def passed(self) -> bool:
        outcomes = {check.outcome for check in self.checks}
        return "passed" in outcomes and "failed" not in outcomes

    def document(self) -> dict[str, Any]:
        return {
            "format": JSON_FORMAT,
            "version": JSON_VERSION,
            "passed": self.passed,
            "subject": self.subject,
            "runtime": self.runtime,
            "precision": self.precision,
            "reference": self.reference,
            "checks": [
                {
                    "name": check.name,
                    "outcome": check.outcome,
                    "detail": check.detail,
                    "measured": _plain(check.measured),
                }
                for check in self.checks
            ],
            "tools": dict(self.tools),
        }

    def junit(self) -> str:
        count = {
            outcome: sum(check.outcome == outcome for check in self.checks) for outcome in _MARKS
        }
        suite = ET.Element(
            "testsuite",
            name=_printable(f"kvcast verify {self.subject}"),
            tests=str(len(self.checks)),
            failures=str(count["failed"]),
            errors="0",
            skipped=str(count["skipped"]),
        )
        properties = ET.SubElement(suite, "properties")
        facts = {
            "runtime": self.runtime,
            "precision": self.precision,
            "reference": self.reference,
            **self.tools,
        }
        for name, value in facts.items():
            ET.SubElement(properties, "property", name=name, value=_printable(value))
        for check in self.checks:
            case = ET.SubElement(suite, "testcase", classname="kvcast.verify", name=check.name)
            if check.outcome in ("failed", "skipped"):
                kind = "failure" if check.outcome == "failed" else "skipped"
                ET.SubElement(case, kind, message=_printable(check.detail))
            measured = {"detail": check.detail, **_plain(check.measured)}
            ET.SubElement(case, "system-out").text = _printable(
                json.dumps(measured, ensure_ascii=False, allow_nan=False)
            )
        suites = ET.Element("testsuites")
        suites.append(suite)
        ET.indent(suites)
        return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"

    def lines(self) -> Iterator[str]:
        """Yield the lines of a terminal's table, each with its end."""
        yield from _row("model", self.subject)
        yield from _row("runtime", f"{self.runtime}, {self.precision}")
        yield from _row("reference", self.reference)
        yield "\n"
        for check in self.checks:
            yield from _row(check.name, f"{_MARKS[check.outcome]:<8}{check.detail}", hanging=8)
        yield "\n"
        failed = [check.name for check in self.checks if check.outcome == "failed"]
        made = sum(check.outcome in ("passed", "failed") for check in self.checks)
        if failed:
            yield f"{len(failed)} of {made} checks failed: {', '.join(failed)}\n"
        else:
            yield f"{made} {'check' if made == 1 else 'checks'} passed\n"


def _plain(value: Any) -> Any:
    """Return a value in JSON's types; NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _printable(text: str) -> str:
    return _NOT_XML.sub(lambda letter: f"\\u{ord(letter[0]):04x}", text)


def _row(name: str, text: str, *, hanging: int = 0) -> Iterator[str]:
    folded = textwrap.wrap(
        text, _WIDTH - _NAMES, subsequent_indent=" " * hanging, break_on_hyphens=False
    )
    for line in folded or [""]:
        yield f"{name:<{_NAMES}}{line}".rstrip() + "\n"
        name = ""
