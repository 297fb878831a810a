"""`--time-by-file`: a table of the processor and wall-clock time of each test file."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

_PROPERTY = "time_by_file"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--time-by-file", action="store_true", help="print the time of each test file at the end"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--time-by-file"):
        config.pluginmanager.register(_Clock())


class _Clock:
    """Measures each test, with the fixtures it sets up, where it runs; adds up in the controller.

    Processor time includes child processes, except those that their parent does not wait for,
    such as workers of Ray: for files of Ray it is too low.
    """

    def __init__(self) -> None:
        self._last = (time.monotonic(), _processor_seconds())
        self._totals: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Iterator[Any]:
        report = yield
        if call.when == "teardown":
            before, self._last = self._last, (time.monotonic(), _processor_seconds())
            spent = [max(0.0, b - a) for a, b in zip(before, self._last, strict=True)]
            report.user_properties.append((_PROPERTY, spent))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, spent in report.user_properties:
            if name == _PROPERTY:
                total = self._totals[report.nodeid.split("::")[0]]
                for index, value in enumerate([1, *spent]):
                    total[index] += value

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        rows = sorted(self._totals.items(), key=lambda row: -row[1][2])
        write = terminalreporter.write_line
        write(f"{'processor s':>12} {'wall s':>8} {'cases':>6}  file")
        for path, (cases, wall, processor) in rows:
            write(f"{processor:12.1f} {wall:8.1f} {cases:6.0f}  {path}")
        cases, wall, processor = (sum(total[i] for _, total in rows) for i in range(3))
        write(f"{processor:12.1f} {wall:8.1f} {cases:6.0f}  all")


def _processor_seconds() -> float:
    """Of this process and its descendants, those that ended included."""
    total = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:  # ended meanwhile: the next measurement has it
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total
