"""Unpack NVIDIA's libraries, then run tests/vendor on them: with this torch and with the oldest.

Exits 0, with a reason, where the libraries cannot be had.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from tests.support.kernels import ROOT
from tests.vendor import libraries

#: Made by ``make test-oldest``: a torch for CUDA 12, which these libraries are for.
_OLDEST = ROOT / ".venv-oldest"


def main(arguments: Sequence[str]) -> int:
    try:
        folder = libraries.unpack()
    except libraries.UnavailableError as error:
        print(f"skipped: NVIDIA's libraries cannot be unpacked: {error}")
        return 0
    print(f"NVIDIA's libraries, unpacked in {folder.relative_to(ROOT)}", flush=True)
    pythons = [sys.executable]
    if (_OLDEST / "ready").exists():
        pythons.append(str(_OLDEST / "bin" / "python"))
    else:
        print("without a torch for CUDA 12: make .venv-oldest/ready brings one", flush=True)
    command = ["-m", "pytest", "--vendor", "tests/vendor", *arguments]
    # Both are run, whatever the first says.
    codes = [subprocess.call([python, *command], cwd=ROOT) for python in pythons]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
