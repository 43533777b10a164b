"""Imports a table's `module:attribute`, so that low layers can name higher ones."""

from importlib import import_module
from typing import Any


def imported(entry_point: str) -> Any:
    """Return the attribute of a module that `module:attribute` names."""
    module, _, attribute = entry_point.partition(":")
    return getattr(import_module(module), attribute)
