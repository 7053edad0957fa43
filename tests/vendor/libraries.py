"""NVIDIA's own driver and NVML, unpacked from Debian's packages; nothing is installed.

The archive's address is the one in the machine's own apt configuration, to which the component of
these packages is added in a private one. They are the real libraries, with no device behind them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
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
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    line = f"deb $(REPO_URI) $(RELEASE) {COMPONENT}"
    named = _run("apt-get", "indextargets", "--format", line, "Component: main").splitlines()
    sources = {each for each in named if "/debian" in each}  # others have keys of their own
    if not sources:
        raise UnavailableError("apt's configuration names no Debian archive")
    (folder / "sources.list").write_text("\n".join([*sources, ""]))
    (folder / "status").touch()
    options = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "",  # its own user may not write here
        "Acquire::Languages": "none",
    }
    return ["-q", *(f"-o{name}={value}" for name, value in options.items())]


def _libraries() -> Path:
    """The folder that holds the libraries under their sonames."""
    for found in (FOLDER / "root").rglob(NEEDED[0]):
        if all((found.parent / name).exists() for name in NEEDED):
            return found.parent
    raise UnavailableError(f"the packages do not hold {' and '.join(NEEDED)} in one folder")


def _run(*command: str, folder: Path | None = None) -> str:
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
    return done.stdout
