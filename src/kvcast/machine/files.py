"""How many files and connections a process may have open. Knows no use of them."""

import contextlib


def allow_open_files(count: int) -> None:
    """Let this process open so many files, or as many as the system lets it."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # elsewhere than on Unix
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < count:
            most = count if hard == resource.RLIM_INFINITY else min(count, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
