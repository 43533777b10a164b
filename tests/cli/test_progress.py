"""Progress on a terminal: its colours."""

import io

import pytest
from rich.console import Console

from kvcast.cli.console import DrawnProgress


@pytest.mark.parametrize("total", [10.0, None], ids=["measured", "of unknown length"])
def test_work_under_way_is_green(total: float | None):
    screen = io.StringIO()
    drawn = DrawnProgress()
    drawn._console = Console(
        file=screen, force_terminal=True, color_system="truecolor", width=80, _environ={}
    )
    with drawn.measuring("talk.wav", total):
        drawn.reached(4.0)
    shown = screen.getvalue()
    assert "talk.wav" in shown
    assert "249;38;114" not in shown, "rich's red, which looks like an error"
    assert ("\x1b[32m" in shown) == (total is not None)
