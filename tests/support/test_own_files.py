"""A traceback that names the package's files is told from one that names a checkout of its name."""

from __future__ import annotations

import gpumagic.errors
from tests.support.own_files import names_our_files


def test_only_files_of_the_package_are_named() -> None:
    assert names_our_files(f'File "{gpumagic.errors.__file__}", line 1')
    assert names_our_files("File ~/gpumagic/gpumagic/cells/compile.py:3, in f")
    assert not names_our_files("File ~/gpumagic/.venv/lib/python3.13/site-packages/torch/_ops.py:9")
    assert not names_our_files("File ~/gpumagic/tests/cells/test_compile.py:3, in f")
