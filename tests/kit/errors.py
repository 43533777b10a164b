"""Checks that an error is one line, raised or printed."""

import re
from collections.abc import Callable
from typing import Any

import pytest


def one_line(
    kind: type[Exception] | tuple[type[Exception], ...],
    function: Callable[..., Any],
    *arguments: Any,
) -> str:
    """Return the message of the error that a function raises."""
    with pytest.raises(kind) as caught:
        function(*arguments)
    message = str(caught.value)
    assert message.isprintable()
    return message


@pytest.fixture
def error_line(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """Return what a failed command printed: one line on standard error, and nothing else."""

    def read() -> str:
        printed = capsys.readouterr()
        assert printed.out == ""
        assert re.fullmatch(r"kvcast[^\n]*: [^\n]+\n", printed.err)
        return printed.err

    return read
