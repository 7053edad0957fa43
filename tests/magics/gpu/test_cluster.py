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
        with pytest.raises(UsageError, match=r"install it with: pip install 'gpumagic\[cluster\]'"):
            run_cell(line)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("%gpu off -t 0", "-t goes with a cluster; for example: %gpu off --cluster -t 0:4"),
        ("%gpu --share", "--share goes with a cluster"),
        ("%gpu cluster a b", "one profile or connection file, not 2"),
        ("%gpu pin 0", "it takes no '0'"),
        ("%gpu off --cluster --restart --keep x", "--keep is for this kernel"),
        ("%gpu off --cluster --restart --blocking", "--blocking is for this kernel"),
        ("%gpu off --cluster --soft", "--soft is for this kernel"),
        ("%gpu off --cluster --threads 2", "--threads is for this kernel"),
        ("%gpu off --cluster --idle", "--idle goes with auto"),
        ("%gpu auto 2 --cluster --wait 5", "--wait is for this kernel"),
        ("%gpu off --cluster --share", "--share goes with %gpu pin"),
        ("%gpu pin --backend gloo", "--backend goes with %gpu dist"),
        ("%gpu dist down --backend nccl", "--backend goes with %gpu dist init"),
        ("%gpu dist --backend nccl", "--backend goes with %gpu dist init"),
        ("%gpu cluster --every 5", "--every is for this kernel"),
        ("%gpu cluster --for 3", "--for is for this kernel"),
        ("%gpu watch --cluster", "%gpu watch is for this kernel; for the engines: %gpu cluster"),
        ("%gpu ps --cluster", "for the engines: %gpu cluster -p"),
        ("%gpu doctor --cluster", "%gpu doctor is for this kernel"),
        ("%gpumem --cluster -f foo x = 1", "-f is for this kernel alone"),
        ("%gpu cluster --restart", "restarts nothing"),
        ("%cudatime --barrier 1", "in no group of torch.distributed"),
        ("%gpu pin --per-engine 0", "'0' is not a number of GPUs"),
        ("%gpumem --cluster", "needs a statement"),
        ("%gpumem -t 0 1", "-t goes with --cluster"),
        ("%cudatime -t 0 1", "-t goes with --cluster"),
        ("%%cudatime --cluster --name a\n1", "--name is for this kernel alone"),
        ("%%cudatime --cluster --trace a.json\n1", "--trace is for this kernel alone"),
        ("%%gpumem --cluster --lines\n1", "--lines is for this kernel alone"),
        ("%%gpu off --cluster\n1", "%%gpu is for this kernel"),
    ],
)
def test_bad_input(run_cell: Run, line: str, reason: str) -> None:
    with pytest.raises(UsageError) as raised:
        run_cell(line)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


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
