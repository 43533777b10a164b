"""Figures of published claims, and their counts by formula; docs/sources.md has the tables."""

import re
from pathlib import Path

import pytest

from kvcast.cli import main
from kvcast.errors import KvcastError
from kvcast_bench.commands.sources import CLAIMS
from kvcast_bench.sources import flops
from kvcast_bench.sources.figures import Figures, markdown, prefixed, spread, times, write_figures

PAGE = (Path(__file__).parents[3] / "docs" / "sources.md").read_text("utf-8")


def section(claim: str) -> str:
    found = re.search(rf"<!-- figures: {claim} -->\n(.*?)<!-- end of figures -->", PAGE, re.DOTALL)
    return found[1]


def test_figures_are_written_between_a_pages_comments():
    table = Figures(head=["a", "b"], rows=[["1", r"\2"]], note="That.")
    page = "x\n<!-- figures: one -->\nold\n<!-- end of figures -->\ny <!-- end of figures -->\n"
    new = write_figures(page, {"one": [table, table]})
    once = "| a | b |\n| --- | --- |\n| 1 | \\2 |\n\nThat.\n"
    assert new == (
        f"x\n<!-- figures: one -->\n{once}\n{once}<!-- end of figures -->\ny "
        "<!-- end of figures -->\n"
    )
    assert write_figures(new, {"one": [table, table]}) == new
    with pytest.raises(KvcastError, match="no place for two"):
        write_figures(page, {"two": [table]})


def test_numbers_have_three_digits():
    assert spread([0.2, 0.1, 0.3]) == "200 (100 to 300)"
    assert spread([0.00234, 0.0021, 0.01]) == "2.34 (2.10 to 10.00)"
    assert times([2.0, 4.0, 3.0], [1.0, 2.0]) == "2.00"
    assert prefixed(4.2949e17) == "4.29e17"


def test_the_page_has_figures_of_every_claim():
    assert all(section(claim).startswith("| ") for claim in CLAIMS)
    assert section("flops") == markdown(flops.measure())


def test_the_published_count_is_sixteen_times_what_is_saved():
    of, costs = flops.mistral()
    sizes = len(of.windows), of.width
    key_width = of.kv_heads * of.head_dim
    wrong = flops.published(*sizes, flops.TOKENS)
    assert wrong == pytest.approx(4.29e17, rel=2e-3)
    assert wrong == 4 * flops.width_once(*sizes, key_width, flops.TOKENS)
    right = flops.saved(*sizes, key_width, flops.TOKENS)
    assert right == pytest.approx(2.68e16, rel=2e-3)
    assert wrong / right == pytest.approx(16, rel=2e-4)
    calls = costs["calls"]["all"]
    cached, anew = (calls[way]["flop"]["keys_values"] for way in ("cached", "recomputed"))
    # By hand and by the command, and by a sum over all tokens.
    assert right == anew - cached
    assert right == sum(2 * 2 * 32 * 4096 * 1024 * earlier for earlier in range(flops.TOKENS))


def test_turbos_projections_are_counted_alike_by_formula_and_command():
    of, costs = flops.turbo()
    formula = flops.cross_projections(of.decoder_layers, of.d_model, of.source_positions)
    step = costs["calls"]["next"]
    assert formula == step["recomputed"]["flop"]["cross_keys_values"] == 39_321_600_000
    assert formula / step["cached"]["flop"]["total"] == pytest.approx(113, abs=0.5)


def test_an_unknown_claim_and_a_page_that_is_missing_are_refused(tmp_path, capsys):
    assert main(["bench", "sources", "--claims", "none"]) == 2
    assert main(["bench", "sources", "--claims", "flops", "--page", str(tmp_path / "no.md")]) == 74
    page = tmp_path / "page.md"
    page.write_text("nothing")
    capsys.readouterr()
    assert main(["bench", "sources", "--claims", "flops", "--page", str(page)]) == 1
    assert "no place for flops" in capsys.readouterr().err


def test_the_command_writes_a_page(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("<!-- figures: flops -->\n<!-- end of figures -->\n")
    assert main(["bench", "sources", "--claims", "flops", "--page", str(page)]) == 0
    table = markdown(flops.measure())
    assert page.read_text() == f"<!-- figures: flops -->\n{table}<!-- end of figures -->\n"
    assert capsys.readouterr().out == f"flops\n\n{table}"
