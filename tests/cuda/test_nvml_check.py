"""The variable that makes torch query NVML: set on loading, unset once it has no use."""

from __future__ import annotations

import os

import pytest

from gpumagic.cuda import nvml_check
from gpumagic.cuda.process_state import STATE

VARIABLE = "PYTORCH_NVML_BASED_CUDA_CHECK"


@pytest.mark.parametrize("users", [None, "1", "0"])
def test_the_variable_is_unset_where_nvml_cannot_be_initialised(
    monkeypatch: pytest.MonkeyPatch, users: str | None
) -> None:
    """A value that the user has set is kept."""
    monkeypatch.delenv(VARIABLE, raising=False)
    if users is not None:
        monkeypatch.setenv(VARIABLE, users)
    if users is None:
        monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.setattr(STATE, "nvml_check_set", users is None)
    nvml_check.withdraw()
    assert os.environ.get(VARIABLE) == users
    assert not nvml_check.is_ours()
