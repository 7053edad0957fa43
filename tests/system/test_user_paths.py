"""Invalid paths, and pipes, which would block their reader or writer: one line at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.errors import SpecError
from gpumagic.memory import history
from gpumagic.system import user_paths
from gpumagic.system.writing import output_path
from tests.support.other_user import needs_root, run_as_other_user

pytestmark = pytest.mark.skipif(os.name == "nt", reason="other messages, and no pipes in folders")

NONE = {
    "~nosuchuser/x.json": "no home folder is known for ~nosuchuser",
    "a/" + "x" * 5000: "File name too long",
    "x" * 300 + ".json": "File name too long",
    "a\0b.json": "no path has such characters",
}


@pytest.mark.parametrize("text", NONE)
@pytest.mark.parametrize("use", [user_paths.user_path, output_path])
def test_what_is_no_path_is_one_line(use: Callable[[str], Any], text: str) -> None:
    with pytest.raises(SpecError) as raised:
        use(text)
    assert NONE[text] in str(raised.value)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 400


def test_what_is_not_there_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "no" / "such", tmp_path / "file" / "below", tmp_path):
        assert user_paths.user_path(path) == path
    for name in ("file", "new"):
        assert output_path(str(tmp_path / name)) == tmp_path / name
    with pytest.raises(SpecError, match=f"there is no folder {tmp_path / 'no'}$"):
        output_path(tmp_path / "no" / "such")
    with pytest.raises(SpecError, match=r"that is a folder$"):
        output_path(tmp_path)
    with pytest.raises(SpecError, match=r"^cannot write '': that is no name of a file$"):
        output_path("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(SpecError, match=r"[Tt]oo many levels"):
        output_path(tmp_path / "loop")


@needs_root
def test_where_nothing_may_be_written(shared_folder: Path) -> None:
    """A folder or a file of another user, before anything is run for it."""
    closed = shared_folder / "closed"
    closed.mkdir(mode=0o755)
    (shared_folder / "foreign.json").touch(mode=0o644)
    for path in (closed / "new.json", shared_folder / "foreign.json"):
        output_path(path)
        said = run_as_other_user(
            f"try:\n    output_path({str(path)!r})\nexcept Exception as error:\n    print(error)",
            imports="os\nfrom gpumagic.system.writing import output_path",
        )
        assert said == f"cannot write {path}: Permission denied\n"


def test_nothing_is_written_into_a_pipe(
    run_cell: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening it for writing would wait for a reader."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(history, "write_snapshot", None)  # not even the snapshot is made
    for line in (f"%gpumem snapshot '{pipe}'", f"%cudatime --trace '{pipe}' 1"):
        with pytest.raises(UsageError, match="that is no regular file"):
            run_cell(line)
