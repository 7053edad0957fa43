"""A child process tries whether kept variables load."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import IO

import pytest

from gpumagic.restart import variables as keep
from tests.restart.variables.files import CELL, kept


def tried(files: list[IO[bytes]], environment: dict[str, str] | None = None) -> dict[str, str]:
    trial = keep.Trial(files[0], os.environ if environment is None else environment)
    try:
        return trial.failures(lambda: None)
    finally:
        trial.close()
        keep.close(files)


def test_a_trial_names_what_does_not_load(module: Path) -> None:
    """Also what ends the process that loads it; and it does not find more than the notebook."""
    chosen, files = kept(
        CELL
        + """
import os
class Fails:
    def __reduce__(self): return (fail, ())
def fail(): raise RuntimeError('only there')
class Ends:
    def __setstate__(self, state): os._exit(3)
f = Fails(); good = 5; ends = Ends(); ends.a = 1
"""
    )
    assert "good" in chosen.trusted
    assert not {"m", "f"} & chosen.trusted
    module.unlink()
    failures = tried(files)
    assert failures.keys() == {"m", "both", "f", "ends"}
    assert failures["ends"] == "a fresh process that loads it ends with exit code 3"
    assert failures["f"] == "only there"


def test_a_trial_goes_on_behind_a_failure(module: Path) -> None:
    _, files = kept(
        CELL + "class Fails:\n    def __reduce__(self): return (int, ('x',))\nf = Fails(); x = 1"
    )
    module.unlink()
    failures = tried(files)
    assert failures.keys() == {"m", "both", "f"}
    assert failures["m"] == "No module named 'users_module_of_keep'"
    assert "invalid literal" in failures["f"]


def test_a_trial_in_a_process_that_cannot_load_gpumagic(monkeypatch: pytest.MonkeyPatch) -> None:
    _, files = kept("x = 1")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "python3" in entry
                                      and "site-packages" not in entry])  # fmt: skip
    failures = tried(files)
    assert failures == {
        "": "a fresh process cannot load gpumagic: ModuleNotFoundError: No module named 'gpumagic'"
    }


def test_a_trial_of_quantized_models() -> None:
    """Their weights are packed as they are loaded, which needs the right shapes."""
    pytest.importorskip("torch")
    cell = """
import torch
def packed(weight):
    return torch.ops.quantized.linear_prepack(weight, None)
q = torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8)
scales = torch.tensor([0.1, 0.2]), torch.tensor([0, 0])
c = torch.quantize_per_channel(torch.ones(2, 3), *scales, 0, torch.qint8)
class Quantized:
    def __init__(self, weight): self.packed = packed(weight)
    def __getstate__(self): return torch.ops.quantized.linear_unpack(self.packed)[0]
    def __setstate__(self, weight): self.packed = packed(weight)
by_tensor, by_channel = Quantized(q), Quantized(c)
"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, files = kept(cell)
    assert tried(files) == {}
