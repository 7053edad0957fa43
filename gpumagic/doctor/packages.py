"""Which package the module ``pynvml`` comes from."""

from __future__ import annotations

from collections.abc import Iterator

from gpumagic.doctor.facts import Facts
from gpumagic.results import Finding

_MAINTAINED = "nvidia-ml-py"


def pynvml(facts: Facts) -> Iterator[Finding]:
    """The maintained package is nvidia-ml-py; the others are dead, and torch warns of one."""
    listed = ", ".join(f"{p.name} {p.version}" for p in facts.packages)
    dead = [p for p in facts.packages if p.name != _MAINTAINED]
    if dead:
        owners = [p.name for p in facts.packages if p.owns_module]
        names = " ".join(p.name for p in dead)
        whose = f"; the module pynvml is in the files of {' and '.join(owners)}" if owners else ""
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
            f"{facts.module_file} belongs to none of the packages that bring it",
            f"rename or remove that file, then %pip install {_MAINTAINED}",
        )
    else:
        yield Finding("pynvml", "warn", "not installed", f"%pip install {_MAINTAINED}")
