"""The doctor: findings on why torch can, or cannot, use the GPU, with evidence and remedy.

It neither initialises CUDA nor imports torch in this process: where torch is needed, a child
process or a fork of this one uses it. `checks` has all checks in their order; each returns its
finding, None where it does not apply. `failed_cell` is the one line below a cell that failed.
"""

from __future__ import annotations

from gpumagic.doctor.checks import judge
from gpumagic.doctor.diagnosis import Diagnosis
from gpumagic.doctor.facts import Facts

__all__ = ["diagnose"]


def diagnose() -> Diagnosis:
    """Examine the machine, torch and this process; return the report.

    Takes seconds if torch is not loaded, since a child process imports it.

    Examples:
        >>> gpumagic.diagnose().usable
        4

    .. versionadded:: 0.1.0
    """
    return judge(Facts())
