"""What a restart imports from the working folder, and connections of other users."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.restart import FREEZE
from tests.support.kernels import Kernel
from tests.support.planted_modules import PlantedModules

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows restarts nothing")


def test_the_notebook_has_changed_to_a_folder_of_others(
    kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    """What it imported before is imported again from where it was; its own modules are found."""
    planted = PlantedModules(tmp_path)
    (planted.folder / "mine.py").write_text("class Mine:\n    value = 7\n")
    (planted.folder / "of").mkdir()
    (planted.folder / "of" / "them.py").write_text("class Other: pass\n")
    k = kernel()
    k.run(f"{FREEZE}\nimport os, sys, torch, numpy\nassert '' in sys.path")
    k.run("%gpu\n%gpu -p")
    k.run("tensor, array = torch.ones(2), numpy.ones(2)")
    k.run(
        f"os.chdir({str(planted.folder)!r})\nimport mine, of.them\n"
        "thing, other = mine.Mine(), of.them.Other()"
    )
    assert planted.used == []
    restarted = k.run("%gpu 1 --restart --keep tensor array thing other")
    assert "Kept: tensor, array, thing, other." in restarted.text
    assert planted.used == []
    assert restarted.html
    k.run("import os, sys")
    assert k.value("(os.getcwd(), '' in sys.path, thing.value)") == (str(planted.folder), True, 7)
    assert "import_places" not in k.value("repr(sys.meta_path)")
