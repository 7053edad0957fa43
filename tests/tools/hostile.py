"""Run pytest in an unusual environment: ``python -m tests.tools.hostile [--without …] PATHS``.

Another locale and time zone, a narrow and dumb terminal, a home whose IPython, Jupyter and
matplotlib are configured otherwise, variables that hide the GPUs, no ``python`` on the PATH, files
that a group may write; where this is root, also an unprivileged user and a host name that does not
resolve.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.kernels import ROOT

_NOBODY = 65534
#: Turkish has an i without a dot: what is upper-cased by the locale shows. If it is not installed,
#: as where ssh has brought it from another machine, every shell complains of it.
_LOCALE = "tr_TR.utf8"
_HOME = {
    ".ipython/profile_default/startup/00-noise.py": "print('noise from a startup file')\n",
    ".ipython/profile_default/ipython_config.py": (
        "c.InteractiveShellApp.exec_lines = ['print(\"noise from a configured line\")', 'x = 1']\n"
        "c.InteractiveShell.ast_node_interactivity = 'all'\n"
        "c.InteractiveShell.xmode = 'Verbose'\n"
        "c.TerminalInteractiveShell.editing_mode = 'vi'\n"
        "c.Completer.use_jedi = False\n"
    ),
    ".ipython/profile_default/ipython_kernel_config.py": (
        "c.IPKernelApp.matplotlib = 'inline'\nc.InteractiveShellApp.pylab = 'inline'\n"
    ),
    ".jupyter/jupyter_config.py": "c.KernelManager.shutdown_wait_time = 0.0\n",
    ".local/share/jupyter/kernels/python3/kernel.json": (
        '{"argv": ["false"], "display_name": "Not this one", "language": "python"}\n'
    ),
    ".config/matplotlib/matplotlibrc": "backend: pdf\nfont.size: 3\naxes.facecolor: red\n",
    ".inputrc": "set editing-mode vi\n",
    "startup.py": "print('noise from PYTHONSTARTUP')\n",
}
_VARIABLES = {
    "TZ": "Pacific/Chatham",
    "COLUMNS": "40",
    "LINES": "5",
    "TERM": "dumb",
    "FORCE_COLOR": "1",
    "MPLBACKEND": "svg",
    "CUDA_VISIBLE_DEVICES": "-1",
    "CUDA_HOME": "/nowhere",
    "NVIDIA_VISIBLE_DEVICES": "void",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    "OMP_NUM_THREADS": "64",
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "PYTHONWARNINGS": "error",
}


@dataclass
class Run:
    """A run of pytest: its environment, and the commands in front of it."""

    folder: Path
    environment: dict[str, str]
    prefix: list[str] = field(default_factory=list)


def _home(run: Run) -> None:
    """A home with settings, and nothing in its cache."""
    home = run.folder / "home"
    for name, text in _HOME.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text, encoding="utf-8")
    for name in [name for name in run.environment if name.startswith("XDG_")]:
        del run.environment[name]
    run.environment |= {"HOME": str(home), "PYTHONSTARTUP": str(home / "startup.py")}


def _variables(run: Run) -> None:
    run.environment |= _VARIABLES


def _locale(run: Run) -> None:
    run.environment = {
        name: value for name, value in run.environment.items() if not name.startswith("LC_")
    }
    run.environment |= {"LANG": _LOCALE, "LC_ALL": _LOCALE}


def _files(run: Run) -> None:
    """Files that a group may change, and the memory of a process that is aborted."""
    limits = 'umask 002 && ulimit -c "$(ulimit -H -c)" && exec "$@"'
    run.prefix = ["sh", "-c", limits, "sh", *run.prefix]


def _path(run: Run) -> None:
    """A ``PATH`` with all programs but ``python``, ``pip`` and the like."""
    folder = run.folder / "bin"
    folder.mkdir()
    for place in run.environment.get("PATH", os.defpath).split(os.pathsep):
        for program in Path(place).glob("*") if place else ():
            there = folder / program.name
            if not program.name.startswith(("python", "pip")) and not there.is_symlink():
                there.symlink_to(program)
    run.environment["PATH"] = str(folder)


def _host(run: Run) -> None:
    """A host name that does not resolve."""
    if os.geteuid() == 0:
        script = 'hostname nowhere.invalid && exec "$@"'
        run.prefix = ["unshare", "--uts", "sh", "-c", script, "sh", *run.prefix]


def _user(run: Run) -> None:
    """An unprivileged user, who owns nothing but a folder."""
    who = [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    if os.geteuid() == 0:
        # The right to pass root's folders is lost with the second exec.
        asked = ["setpriv", *who, "sh", "-c", 'exec "$0" -c ""', sys.executable]
        if subprocess.run(asked, capture_output=True, check=False).returncode:
            print("left out: another user may not run this interpreter", file=sys.stderr)
            return
        for place in (run.folder, *run.folder.rglob("*")):
            os.chown(place, _NOBODY, _NOBODY, follow_symlinks=False)
        run.prefix = [*run.prefix, "setpriv", *who]
        run.environment |= {"USER": "nobody", "LOGNAME": "nobody"}


#: In this order: the user gets what the others have made.
HOSTILITIES: dict[str, Callable[[Run], None]] = {
    "home": _home,
    "variables": _variables,
    "locale": _locale,
    "path": _path,
    "files": _files,
    "host": _host,
    "user": _user,
}


def main(words: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="python -m tests.tools.hostile", description=__doc__)
    options.add_argument("--without", action="append", choices=HOSTILITIES, default=[])
    given, arguments = options.parse_known_args(words)
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    folder.chmod(0o755)
    try:
        run = Run(folder, {**os.environ, "TMPDIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"})
        for name, apply in HOSTILITIES.items():
            if name not in given.without:
                apply(run)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        return subprocess.call([*run.prefix, *command], cwd=ROOT, env=run.environment)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
