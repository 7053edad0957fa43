"""The examples of the public functions' docstrings, run as they stand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import forks
from tests.support.device import ROOT
from tests.virtual_gpu import Scenario

#: Those that docs/reference/python.md lists.
FUNCTIONS = "devices select device diagnose cudatime compare gpumem holders load".split()
#: A fresh process, in which a choice is not too late.
RUN = """
import doctest, sys
import gpumagic
function = getattr(gpumagic, sys.argv[1])
if sys.argv[1] not in ("select", "devices", "diagnose"):
    import torch
test = doctest.DocTestFinder(recurse=False).find(function, sys.argv[1], globs=dict(globals()))[0]
assert test.examples
sys.exit(doctest.DocTestRunner().run(test).failed)
"""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_examples_of(name: str, child_environment: Any, tmp_path: Path) -> None:
    environment = child_environment(Scenario(devices=4), {"PYTHONPATH": str(ROOT)})
    forks.output([sys.executable, "-c", RUN, name], env=environment, cwd=tmp_path)
