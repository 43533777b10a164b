"""A browser for the tests of a module."""

from collections.abc import Iterator
from typing import Any

import pytest

from server.page.browsing import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running
