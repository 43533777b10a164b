"""Cost of tests: CPU time of a run and of its most expensive files, reported at its end.

Counts a process and the children that it has waited for, so that neither other programs nor the
number of cores change the figures. If KVCAST_TEST_COSTS names a file, they are also appended to it.
Sets no limits.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_DEAREST = 20
_KEY = "processor seconds"


class _Worker:
    """Measures, in the process that runs tests, from one report to the next."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._before = 0.0

    def pytest_collection_finish(self) -> None:
        self._before = _seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        now = _seconds()
        report.user_properties.append((_KEY, now - self._before))
        self._before = now
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[_KEY] = _seconds()


class _Summary:
    """Adds up the reports of all workers."""

    def __init__(self) -> None:
        self._files: Counter[str] = Counter()
        self._workers = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _KEY:
                self._files[report.nodeid.split("::")[0]] += value

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._workers += getattr(node, "workeroutput", {}).get(_KEY, 0.0)

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        # Workers are this process's children, too, once they have ended.
        own = os.times()
        total = own.user + own.system + self._workers if self._workers else _seconds()
        part = f"pytest -m '{config.option.markexpr}'"
        lines = [f"{total / 60:.1f} CPU-minutes, of which tests {self._files.total() / 60:.1f}"]
        lines += [f"{value:6.1f} s  {file}" for file, value in self._files.most_common(_DEAREST)]
        terminalreporter.section(f"costs of {part}")
        for line in lines:
            terminalreporter.write_line(line)
        if path := os.environ.get("KVCAST_TEST_COSTS"):
            with Path(path).open("a") as kept:
                kept.write("\n".join([f"{part}: {lines[0]}", *lines[1:], ""]))


def pytest_configure(config: pytest.Config) -> None:
    distributes = config.getoption("numprocesses", None)
    if not distributes:
        config.pluginmanager.register(_Worker(config), "costs of one process")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Summary(), "costs of the run")


def _seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
