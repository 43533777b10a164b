"""Errors that a user can cause, each with the exit code that the command line documents.

A message is one line: what is wrong, then what to do. It knows nothing of how it is shown.
"""


class KvcastError(Exception):
    """Something failed that the user can act on."""

    exit_code = 1


class UsageError(KvcastError):
    """An option, a value or a combination that cannot be served."""

    exit_code = 2


class PartialFailureError(KvcastError):
    """Some of several inputs failed; the others are done and saved."""

    exit_code = 3


class InputMissingError(KvcastError):
    """An input that was named does not exist."""

    exit_code = 66


class InputOutputError(KvcastError):
    """An input cannot be read or decoded, or an output cannot be written."""

    exit_code = 74
