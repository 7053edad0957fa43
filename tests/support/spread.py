"""How xdist spreads the tests over its workers: one by one, but for those that share something.

pytest-xdist's own ``xdist_group`` is a mark that its workers write into names of tests, which
pytest 9.2 does not let them.
"""

from __future__ import annotations

from typing import Any

import pytest

#: Beginnings of the names of tests that have one costly fixture in common: on one worker.
_TOGETHER = (
    "tests/cluster/",  # the engines
    "tests/restart/variables/test_cases.py",  # two processes for all cases
    "tests/magics/gpu/test_options.py",  # a kernel
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        """Makes a scope of each of `_TOGETHER`, and one of every other test."""

        def _split_scope(self, nodeid: str) -> str:
            return next((each for each in _TOGETHER if nodeid.startswith(each)), nodeid)

    return Scheduling(config, log)
