"""Blocking calls in threads, so that an event loop goes on meanwhile."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")


async def each_in_thread(items: Iterator[T]) -> AsyncIterator[T]:
    """Yield an iterator's items, each computed in a thread."""
    from asyncio import to_thread

    end = object()
    while (item := await to_thread(next, items, end)) is not end:
        yield item  # type: ignore[misc]


def awaited(method: Callable[..., T]) -> Callable[..., Awaitable[T]]:
    """Return a method that computes the result of another in a thread."""

    @wraps(method)
    async def twin(owner: Any, *given: Any, **options: Any) -> T:
        from asyncio import to_thread

        return await to_thread(getattr(owner, method.__name__), *given, **options)

    twin.__doc__ = f"Await `{method.__name__}`, which runs in a thread.\n\n{method.__doc__ or ''}"
    return twin
