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


def test_ipyparallel_is_not_imported_before(run_python: Callable[..., str]) -> None:
    code = (
        "import sys\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "ip = InteractiveShell.instance()\n"
        "ip.run_line_magic('load_ext', 'gpumagic')\n"
        "ip.run_line_magic('gpu', '')\n"
        "print([n for n in sys.modules if n.split('.')[0] == 'ipyparallel'])"
    )
    assert run_python(code, fresh=True).splitlines()[-1] == "[]"
