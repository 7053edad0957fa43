"""Each notebook shows the same, plain, with all of gpumagic on, and restarted between its cells."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.notebooks.runner import Page, pages, run
from tests.support.kernels import Kernel, running_kernel


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_shows_without_gpumagic(
    path: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    asked, page = pytestconfig.getoption("cuts"), Page.read(path)
    cuts = page.cuts(None if asked == "all" else int(asked))
    with opened(tmp_path / "plain", load=False) as plain:
        expected = [*run(plain, page)]
    with opened(tmp_path / "on") as on:
        on.run("%cudatime on -q\n%gpumem on -q\n%gpu watch -q")
        assert_same(run(on, page), expected, page, "with all of gpumagic on")
    with opened(tmp_path / "restarted") as restarted:
        outputs = run(restarted, page, cuts)
        assert_same(outputs, expected, page, f"restarted before cells {cuts}")


def opened(folder: Path, *, load: bool = True) -> AbstractContextManager[Kernel]:
    """Return a kernel in a new folder."""
    folder.mkdir()
    return running_kernel(folder, load=load)


def assert_same(outputs: Iterable[str], plain: list[str], page: Page, way: str) -> None:
    """Compare cell by cell, and stop at the first that differs."""
    for number, (shown, expected, cell) in enumerate(
        zip_longest(outputs, plain, page.cells, fillvalue="")
    ):
        assert shown == expected, f"{page.name}, cell {number}, {way}:\n{cell}"
