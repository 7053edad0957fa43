"""What NVIDIA's own libraries answer where there is no device: the base of the virtual GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.vendor import questions

Ask = Callable[..., Any]


@pytest.mark.parametrize("mask", [None, "-1", "0"])
def test_a_driver_that_finds_no_device_stays_uninitialised(ask: Ask, mask: str | None) -> None:
    answers = ask("driver", env={"CUDA_VISIBLE_DEVICES": mask})
    assert answers.pop("version") >= 11000
    assert answers == questions.ANSWERS["driver"]


def test_nvml_misses_the_kernel_module(ask: Ask) -> None:
    assert ask("nvml") == questions.ANSWERS["nvml"]


def test_the_runtime_stays_failed(ask: Ask) -> None:
    """As does a runtime for a newer CUDA than the driver's, which does not ask the driver."""
    library = questions.runtime_library()
    answers = ask("runtime", str(library))
    too_old = int(questions.runtime_soname().rpartition(".")[2]) > answers.pop("version") // 1000
    assert answers == questions.runtime_answers(35 if too_old else 100)
