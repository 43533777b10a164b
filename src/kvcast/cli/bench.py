"""`kvcast bench …`: runs kvcast_bench, a separate package, or prints how to install it."""

from importlib import import_module
from importlib.util import find_spec

from kvcast.cli.arguments import Parser
from kvcast.errors import KvcastError

PACKAGE = "kvcast_bench"
MISSING = "bench is a package of its own: in a clone of kvcast, pip install --editable benchmarks"


def is_installed() -> bool:
    return find_spec(PACKAGE) is not None


def add_arguments(parser: Parser) -> None:
    """Declare the benchmark package's commands; raises KvcastError if it is not installed."""
    if not is_installed():
        raise KvcastError(MISSING)
    import_module(f"{PACKAGE}.cli").add_arguments(parser)
