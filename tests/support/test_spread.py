"""The tests of a worker that dies are run by the others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from xdist.remote import Producer

from tests.__main__ import command
from tests.support import spread
from tests.support.device import ROOT

#: In the middle of its tests: some are done, and a worker has more of them waiting.
_INNER = """
import os, signal
import pytest

@pytest.mark.parametrize("number", range(24))
def test_it(number):
    if number == 12:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "file", ["test_alone.py", "tests/cluster/test_inner.py"], ids=["one by one", "together"]
)
def test_a_worker_that_dies_fails_one_test(tmp_path: Path, file: str, workers: int) -> None:
    """Each case starts pytest, which needs no virtual GPU, and nothing but the scheduler."""
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(_INNER)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    plugins = ["-p", "no:cacheprovider", "-p", "xdist.plugin", "-p", "tests.support.spread"]
    options = ["-n", str(workers), "--dist", "loadgroup", "-rA"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *options],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,  # it would never end
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    ran = re.findall(r"^(PASSED|FAILED) .*\[(\d+)\]", done.stdout, re.MULTILINE)
    assert sorted((int(number), how) for how, number in ran) == [
        (number, "FAILED" if number == 12 else "PASSED") for number in range(24)
    ], done.stdout
    assert re.search(r"worker 'gw\d' crashed while running .*\[12\]", done.stdout)


class Worker:
    """What the scheduler knows of a worker."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.is_dead = self.shutting_down = False
        self.given: list[int] = []

    def send_runtest_some(self, tests: list[int]) -> None:
        if self.is_dead:
            raise OSError("cannot send (already closed?)")
        self.given += tests

    def shutdown(self) -> None:
        self.shutting_down = True


def test_a_worker_that_has_just_died_is_given_work() -> None:
    """The scheduler does not know yet: that work goes to the others, and nothing is lost."""
    options: Any = SimpleNamespace(
        getoption={"dist": "loadgroup"}.get,
        getvalue={"tx": "ab"}.get,
        option=SimpleNamespace(loadscopereorder=False),
    )
    scheduler = spread.pytest_xdist_make_scheduler(options, Producer("test"))
    workers, tests = [Worker("a"), Worker("b")], [f"tests/a.py::t{i}" for i in range(20)]
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, tests)
    scheduler.schedule()
    dying, other = workers
    dying.is_dead = True
    running, *lost = dying.given[1:]
    scheduler.mark_test_complete(dying, dying.given[0])
    assert scheduler.remove_node(dying) == tests[running]
    done = 0
    while done < len(other.given):
        scheduler.mark_test_complete(other, other.given[done])
        done += 1
    assert sorted([dying.given[0], running, *other.given]) == [*range(20)]
    assert {*lost} <= {*other.given}


def test_long_tests_do_not_come_last() -> None:
    """In a worker; others keep their order."""
    names = ["tests/a.py::b", "tests/tools/test_demo.py::c", "tests/a.py::a", "tests/z.py::z"]
    items: Any = [SimpleNamespace(nodeid=name) for name in names]
    spread.pytest_collection_modifyitems(cast("Any", SimpleNamespace()), items)
    assert [item.nodeid for item in items] == names
    spread.pytest_collection_modifyitems(cast("Any", SimpleNamespace(workerinput={})), items)
    assert [item.nodeid for item in items] == [names[1], names[0], *names[2:]]


def test_the_tests_of_a_class_stay_together() -> None:
    """They share its fixture; other tests of the file do not."""
    names = ["a", "TestIt::a", "TestIt::b[x::y]", "TestIts::a", "a[x::y]", "a[TestIt::a]"]
    scopes = [spread.scope(f"tests/a.py::{name}") for name in names]
    assert scopes[1] == scopes[2] == "tests/a.py::TestIt"
    assert len({*scopes}) == len(names) - 1
    assert spread.scope("tests/cluster/test_a.py::b") == "tests/cluster/"


def test_all_tests_are_spread_and_a_part_is_not() -> None:
    folder = str(ROOT / "tests" / "render")
    for arguments in ([], ["-q"], ["-k", folder], ["--ignore", folder], [f"--ignore={folder}"]):
        assert "-n" in command(arguments), arguments
    for arguments in ([folder], ["-q", folder], [f"{ROOT / 'tests/test_cli.py'}::test_it"]):
        assert "-n" not in command(arguments), arguments
