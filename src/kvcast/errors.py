"""Errors that users can cause, with documented exit codes; messages are problem, then remedy."""

_LONGEST = 300


class KvcastError(Exception):
    """Something failed that the user can act on."""

    exit_code = 1


class LibraryMissingError(KvcastError):
    """kvcast's own compiled library is not there and cannot be made; the other runtimes work."""


class UsageError(KvcastError):
    """An option, a value or a combination that is not supported."""

    exit_code = 2


class PartialFailureError(KvcastError):
    """Some of several inputs failed; the results of the others are saved."""

    exit_code = 3


class InputMissingError(KvcastError):
    """An input does not exist."""

    exit_code = 66


class InputOutputError(KvcastError):
    """An input cannot be read or decoded, or an output cannot be written."""

    exit_code = 74


def in_one_line(error: object) -> str:
    """Return another library's error or message in one line of at most 300 characters."""
    return " ".join(str(error).split())[:_LONGEST] or type(error).__name__
