"""NVIDIA's own driver and NVML, unpacked from Debian's packages; nothing is installed.

The archive's address is the one in the machine's own apt configuration, to which the component of
these packages is added in a private one. They are the real libraries, with no device behind them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.kernels import ROOT

#: Where they are unpacked; `FOLDER / LIBRARIES` is what LD_LIBRARY_PATH needs.
FOLDER = ROOT / "build" / "vendor"
PACKAGES = ("libcuda1", "libnvidia-ml1", "nvidia-smi")
COMPONENT = "non-free"
NEEDED = ("libcuda.so.1", "libnvidia-ml.so.1")
_READY = FOLDER / "ready"
#: Patience with one command, in seconds: the archive may be far away.
_PATIENCE = 300


class UnavailableError(Exception):
    """The packages cannot be had on this machine; the reason in one line."""


def unpacked() -> Path | None:
    """The folder with the libraries, if they have been unpacked."""
    return _libraries() if _READY.exists() else None


def unpack() -> Path:
    """Download the packages and unpack them, if that is not done; return the libraries' folder.

    Raises:
        UnavailableError: there is no apt, no such component, or no network.
    """
    for program in ("apt-get", "dpkg"):
        if shutil.which(program) is None:
            raise UnavailableError(f"there is no {program} on this machine")
    found = unpacked()
    if found is not None:
        return found
    shutil.rmtree(FOLDER, ignore_errors=True)
    options = _private_configuration(FOLDER / "apt")
    _run("apt-get", *options, "update")
    archives = FOLDER / "packages"
    archives.mkdir()
    _run("apt-get", *options, "download", *PACKAGES, folder=archives)
    for archive in sorted(archives.glob("*.deb")):
        _run("dpkg", "-x", str(archive), str(FOLDER / "root"))
    folder = _libraries()
    _READY.touch()
    return folder


def _private_configuration(folder: Path) -> list[str]:
    """Apt's options for sources, lists and a cache of our own; its keys stay the machine's."""
    for name in ("lists/partial", "cache/archives/partial", "sources"):
        (folder / name).mkdir(parents=True)
    written = 0
    for path in _sources():
        text = with_component(path.read_text(encoding="utf-8"))
        if text is not None:
            (folder / "sources" / path.name).write_text(text, encoding="utf-8")
            written += 1
    if not written:
        raise UnavailableError("apt's configuration names no Debian archive")
    (folder / "status").touch()
    options = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": folder / "sources",
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "",  # its own user may not write here
        "Acquire::Languages": "none",
    }
    return ["-q", *(f"-o{name}={value}" for name, value in options.items())]


def _sources() -> Iterator[Path]:
    etc = Path("/etc/apt")
    yield from filter(Path.is_file, [etc / "sources.list"])
    yield from sorted([*etc.glob("sources.list.d/*.list"), *etc.glob("sources.list.d/*.sources")])


def with_component(text: str) -> str | None:
    """Apt's sources with the component added to each that has ``main``; None where none has.

    Both forms: a line each (``deb URI SUITE main``), and fields (``Components: main``).
    """
    lines = r"^(deb\s(?:\[[^]]*\]\s*)?.*\smain\b.*|Components:.*\bmain\b.*)$"
    added, number = re.subn(lines, rf"\1 {COMPONENT}", text, flags=re.MULTILINE)
    return added if number else None


def _libraries() -> Path:
    """The folder that holds the libraries under their sonames."""
    for found in (FOLDER / "root").rglob(NEEDED[0]):
        if all((found.parent / name).exists() for name in NEEDED):
            return found.parent
    raise UnavailableError(f"the packages do not hold {' and '.join(NEEDED)} in one folder")


def _run(*command: str, folder: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(str(error)) from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("E: ")]
        raise UnavailableError((said or [f"{command[0]} ended with {done.returncode}"])[0])
