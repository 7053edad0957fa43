"""``%gpu cluster``, ``pin``, ``dist`` and ``--cluster`` without a cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from IPython.core.error import UsageError

from tests.support.shells import Ran

Run = Callable[..., Ran]


def test_without_ipyparallel(run_cell: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipyparallel", None)
    for line in ("%gpu cluster", "%gpu pin", "%gpu off --cluster", "%cudatime --cluster 1"):
        with pytest.raises(UsageError, match=r"install it with: pip install ipyparallel"):
            run_cell(line)
