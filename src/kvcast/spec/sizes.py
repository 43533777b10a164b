"""Checks of dimensions that all families share."""

from kvcast.errors import KvcastError

# More than any model has, and few enough for a table.
MOST_POSITIONS = 1 << 24
MOST_LAYERS = 10_000

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
"""Of feed-forwards and their gates, as programs name them."""


def require_positive(**sizes: int) -> None:
    for name, value in sizes.items():
        if type(value) is not int or value <= 0:
            raise KvcastError(f"{name} must be a positive whole number, not {value!r}")


def require_one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise KvcastError(f"{name} {value!r} is not supported: {', '.join(choices)}")


def require_layers(*counts: int) -> None:
    if max(counts) > MOST_LAYERS:
        raise KvcastError(f"{max(counts)} layers are more than any model has")


def require_positions(**counts: int) -> None:
    for name, count in counts.items():
        if count > MOST_POSITIONS:
            raise KvcastError(f"{name} {count} is more than any model has")


def require_heads(width: int, *counts: int, name: str = "width") -> None:
    for heads in counts:
        if width % heads:
            raise KvcastError(f"{name} {width} is not a multiple of {heads} heads")


def require_token(name: str, token: int, count: int) -> None:
    if type(token) is not int or not 0 <= token < count:
        raise KvcastError(f"{name} {token} is not one of {count} tokens")
