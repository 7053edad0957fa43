"""What NVIDIA's own libraries answer where there is no device: the base of the virtual GPU."""

from __future__ import annotations

import os
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
    looked, supported = answers.pop("looked for devices"), answers.pop("version")
    too_old = int(questions.runtime_soname().rpartition(".")[2]) > supported // 1000
    assert answers == questions.runtime_answers(35 if too_old else 100)
    if os.geteuid() == 0 and ask("looks") == [True] * 3:
        # Each cuInit looks for devices anew; of the runtime's calls none but the first.
        assert looked == [not too_old, False, False]
