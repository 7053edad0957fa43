"""The folder of kept variables: nobody else's is loaded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpumagic.restart import variables

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no owners and modes")


def test_kept_variables_are_loaded_from_a_folder_of_ones_own(tmp_path: Path) -> None:
    """What lies there runs: somebody else may have made it again in /tmp."""
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o700)
    (folder / "variables").write_bytes(b"")
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(PermissionError, match="not a folder of this user's"):
        variables.load(str(tmp_path / "link"))
    folder.chmod(0o770)
    with pytest.raises(PermissionError, match="not a folder of this user's"):
        variables.load(str(folder))
    folder.chmod(0o700)
    with pytest.raises(OSError, match="Invalid argument"):  # there is nothing in it
        variables.load(str(folder))
