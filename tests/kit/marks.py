"""Cases of a parametrized test that run only with `pytest -m slow`, or `-m soak`."""

from typing import Any

import pytest


def slow(*case: Any) -> Any:
    return pytest.param(*case, marks=pytest.mark.slow)


def soak(*case: Any) -> Any:
    return pytest.param(*case, marks=pytest.mark.soak)
