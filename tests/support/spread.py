"""How xdist spreads the tests over its workers: one by one, but for those that share something.

pytest-xdist's own ``xdist_group`` is a mark that its workers write into names of tests, which
pytest 9.2 does not let them.
"""

from __future__ import annotations

from typing import Any

import pytest

#: Beginnings of the names of tests that have one costly fixture in common: on one worker.
_TOGETHER: tuple[str | tuple[str, ...], ...] = (
    ("tests/frontends/test_browser.py", "tests/frontends/test_watch.py"),  # a server
    "tests/frontends/test_tables.py",  # a browser
    "tests/cluster/",  # the engines
    "tests/restart/variables/test_cases.py",  # two processes for all cases
    "tests/magics/gpu/test_options.py",  # a kernel
    "tests/magics/gpu/test_restarting.py::test_refusals_change_nothing",  # another
    "tests/test_imports.py",  # the syntax trees of the package
)
#: Beginnings of the names of tests that take long, but would come last: all workers end together.
_FIRST = (
    "tests/frontends/test_browser.py",
    "tests/frontends/test_watch.py",
    "tests/tools/test_demo.py",
    "tests/support/test_ending.py",
    "tests/virtual_gpu/test_processes.py",
)


def scope(nodeid: str) -> str:
    """Return what a test has in common with those that are to run on the same worker."""
    together = next((str(each) for each in _TOGETHER if nodeid.startswith(each)), None)
    if together is not None:
        return together
    file, *names = nodeid.partition("[")[0].split("::")
    # The tests of a class share its fixture.
    return f"{file}::{names[0]}" if len(names) > 1 else nodeid


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker: the same order in each."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(_FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        """Makes a scope of each of `_TOGETHER`, of each class, and of every other test.

        What a worker has done is removed from its work. xdist keeps it, which makes each step
        longer than the last one; and where a worker dies, xdist gives out all of its scopes again,
        also those of which nothing is left to do, and one to each worker: they wait for ever.
        """

        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            self._remove(node, self.registered_collections[node][item_index])
            self._reschedule(node)

        def remove_node(self, node: Any) -> str | None:
            """Return the test in which this worker died, if any; the rest goes to the others."""
            work = self.assigned_work[node]
            crashed = next((test for tests in work.values() for test in tests), None)
            if crashed is not None:
                self._remove(node, crashed)
            del self.assigned_work[node]
            for scope, tests in reversed(work.items()):
                self.workqueue[scope] = tests
                self.workqueue.move_to_end(scope, last=False)
            for other in self.nodes:
                self._reschedule(other)
            return crashed

        def _reschedule(self, node: Any) -> None:
            """Give a worker what it needs: it begins a test when it knows the next one."""
            # One that replaces a dead worker may not have collected the tests yet.
            if node.shutting_down or node not in self.registered_collections:
                return
            while self.workqueue and self._pending_of(self.assigned_work[node]) <= 2:
                try:
                    self._assign_work_unit(node)
                except OSError:  # it has just died, and its work goes to the others
                    return
            if not self.workqueue:
                node.shutdown()

        def _remove(self, node: Any, test: str) -> None:
            scope = self._split_scope(test)
            tests = self.assigned_work[node][scope]
            del tests[test]
            if not tests:
                del self.assigned_work[node][scope]

    return Scheduling(config, log)
