"""Where the time of a run went: by folder, and the slowest tests (``--times``)."""

from __future__ import annotations

from collections import Counter

import pytest

_SLOWEST = 15


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", action="store_true", help="at the end, where the time went")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if not config.getoption("--times"):
        return
    tests: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                tests[report.nodeid] += report.duration  # type: ignore[assignment]
    folders: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    for name, seconds in tests.items():
        parts = name.partition("::")[0].split("/")
        folder = "/".join(parts[:2])
        folders[folder] += seconds
        numbers[folder] += 1
    terminalreporter.section(f"where {sum(tests.values()):.0f} s of tests went")
    for folder, seconds in folders.most_common():
        terminalreporter.write_line(f"{seconds:7.1f} s  {numbers[folder]:5} tests  {folder}")
    terminalreporter.write_line("the slowest tests:")
    for name, seconds in tests.most_common(_SLOWEST):
        terminalreporter.write_line(f"{seconds:7.1f} s  {name}")
