"""Check which package provides the module ``pynvml``."""

from __future__ import annotations

from collections.abc import Iterator

from gpumagic.doctor.facts import Facts
from gpumagic.results import Finding

_MAINTAINED = "nvidia-ml-py"


def pynvml(facts: Facts) -> Iterator[Finding]:
    """Check that only nvidia-ml-py provides pynvml: the other packages are unmaintained."""
    listed = ", ".join(f"{p.name} {p.version}" for p in facts.packages)
    unmaintained = [p for p in facts.packages if p.name != _MAINTAINED]
    if unmaintained:
        owners = [p.name for p in facts.packages if p.owns_module]
        names = " ".join(p.name for p in unmaintained)
        whose = f"; the module pynvml belongs to {' and '.join(owners)}" if owners else ""
        yield Finding(
            "pynvml",
            "warn",
            f"{listed} installed{whose}",
            f"%pip uninstall -y {names}, then %pip install --force-reinstall {_MAINTAINED}",
        )
    elif facts.packages:
        yield Finding("pynvml", "ok", f"from {listed}")
    elif facts.module_file is not None:
        yield Finding(
            "pynvml",
            "warn",
            f"{facts.module_file} belongs to no package that provides pynvml",
            f"rename or remove that file, then %pip install {_MAINTAINED}",
        )
    else:
        yield Finding("pynvml", "warn", "not installed", f"%pip install {_MAINTAINED}")
