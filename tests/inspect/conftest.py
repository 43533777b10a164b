"""Programs run on one thread: on a busy machine, two would wait for each other."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvcast.runtimes.reference.available_cores", lambda: 1)
        yield
