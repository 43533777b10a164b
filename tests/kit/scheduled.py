"""Requests and policies for schedulers under test."""

from typing import Any

from kvcast.engine.callers import Policy, RequestList
from kvcast.engine.requests import Request
from kvcast.engine.scheduler import Scheduler


def added(scheduler: Scheduler, *requests: Request) -> RequestList:
    """Let a caller of its own have these requests run."""
    caller = RequestList(requests)
    scheduler.add(caller)
    return caller


def drain(scheduler: Scheduler) -> None:
    """Run everything to its end."""
    while not scheduler.idle:
        scheduler.step()


def at_once(result: Any) -> Policy[Any]:
    """Return a policy that has its result without any request."""
    return result
    yield None


def result_of(policy: Policy[Any]) -> Any:
    """Return the result of a policy that makes no request."""
    try:
        while True:
            assert next(policy) is None
    except StopIteration as end:
        return end.value
