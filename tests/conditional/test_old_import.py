"""The old name of `kvcast.conditional`, `kvcast.export`, works and warns."""

import importlib
import sys

import pytest

from kvcast.conditional import cross_attention


@pytest.fixture(autouse=True)
def _not_yet_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kvcast.export", "kvcast.export.cross_attention"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_the_old_import_works_and_names_the_new_place() -> None:
    with pytest.warns(DeprecationWarning, match=r"import from kvcast\.conditional\.") as caught:
        from kvcast.export.cross_attention import use_cached_cross_attention
    assert use_cached_cross_attention is cross_attention.use_cached_cross_attention
    assert [warning.filename for warning in caught] == [__file__]


def test_the_old_package_has_the_module() -> None:
    with pytest.warns(DeprecationWarning, match=r"kvcast\.conditional"):
        old = importlib.import_module("kvcast.export")
    assert old.cross_attention is cross_attention


def test_a_warning_that_is_an_error_leaves_nothing_half_imported() -> None:
    for _ in range(2):
        with pytest.raises(DeprecationWarning):
            importlib.import_module("kvcast.export.cross_attention")
