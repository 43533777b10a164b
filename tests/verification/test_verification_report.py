"""Reports as text, JSON and JUnit XML."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from kvcast.verification.report import Check, Report

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "verification.schema.json").read_text(encoding="utf-8")
)
PASSED = Check(
    name="chunks",
    outcome="passed",
    detail="9 ways to cut the prompt give the same logits",
    measured={"largest": np.float32(0.5), "by_position": np.array([0, 1]), "worst": float("nan")},
)
FAILED = Check(name="batch", outcome="failed", detail="row 1 of 3 differs by 0.2 <at> position 7")
SKIPPED = Check(name="beams", outcome="skipped", detail="no \x1b[31mcross\ufffe cache")
REPORT = Report(
    subject="dir/model & more",
    runtime="native",
    precision="fp32",
    reference="native fp32",
    checks=(PASSED, FAILED, SKIPPED),
    tools={"kvcast": "1.2"},
)


def test_document_meets_its_schema_and_has_plain_numbers():
    document = json.loads(json.dumps(REPORT.document(), allow_nan=False))
    jsonschema.validate(document, SCHEMA)
    measured = document["checks"][0]["measured"]
    assert measured == {"largest": 0.5, "by_position": [0, 1], "worst": None}
    assert [check["outcome"] for check in document["checks"]] == ["passed", "failed", "skipped"]
    document["checks"][0]["name"] = "Not an identifier"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


@pytest.mark.parametrize(
    ("checks", "passed"),
    [((PASSED, SKIPPED), True), ((PASSED, FAILED), False), ((SKIPPED,), False), ((), False)],
)
def test_a_report_passes_if_something_was_compared_and_nothing_failed(checks, passed):
    report = replace(REPORT, checks=checks)
    assert report.passed is passed
    assert report.document()["passed"] is passed


def test_junit_counts_and_explains():
    suite = ET.fromstring(REPORT.junit()).find("testsuite")
    counts = {name: suite.get(name) for name in ("name", "tests", "failures", "errors", "skipped")}
    assert counts == {
        "name": "kvcast verify dir/model & more",
        "tests": "3",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
    }
    passed, failed, skipped = suite.findall("testcase")
    assert passed.find("failure") is passed.find("skipped") is None
    assert failed.find("failure").get("message") == FAILED.detail
    assert skipped.find("skipped").get("message") == r"no \u001b[31mcross\ufffe cache"
    assert json.loads(passed.find("system-out").text)["by_position"] == [0, 1]


def test_text_names_what_failed():
    text = "".join(REPORT.lines())
    assert "batch             FAILED  row 1 of 3 differs by 0.2 <at> position 7\n" in text
    assert text.endswith("1 of 2 checks failed: batch\n")
    assert max(map(len, text.splitlines())) <= 96
    assert "".join(replace(REPORT, checks=(PASSED,)).lines()).endswith("\n1 check passed\n")
