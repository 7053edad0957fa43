"""A driver with no device: the virtual GPU answers what NVIDIA's own libraries do.

They are asked the same by ``make test-vendor`` (tests/vendor).
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.support import forks
from tests.vendor import questions
from tests.virtual_gpu import Scenario, environment


def _ask(scenario: Scenario, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, questions.__file__, *arguments]
    answers: dict[str, Any] = json.loads(forks.output(command, env=environment(scenario)))
    return answers


#: What `make test-vendor` finds: no kernel module of the driver's.
MACHINE = Scenario(devices=0, faults={"nvmlInit*": 9})


@pytest.mark.parametrize("subject", ["driver", "nvml"])
def test_it_answers_as_the_real_libraries(subject: str) -> None:
    answers = _ask(MACHINE, subject)
    answers.pop("version", None)
    assert answers == questions.ANSWERS[subject]


@pytest.mark.parametrize(("older", "code"), [(0, 100), (1, 35)])
def test_the_runtime_answers_as_the_real_one(older: int, code: int) -> None:
    """The runtime of this torch, on a driver for the same CUDA and for the major version before."""
    soname = questions.runtime_soname()
    major = int(soname.rpartition(".")[2]) - older
    scenario = Scenario(devices=0, faults={"nvmlInit*": 9}, cuda_version=major * 1000 + 20)
    answers = _ask(scenario, "runtime", soname)
    assert answers.pop("version") == major * 1000 + 20
    assert answers == questions.runtime_answers(code)
