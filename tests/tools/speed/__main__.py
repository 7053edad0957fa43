"""Run a command as on another machine: ``python -m tests.tools.speed TIMES COMMAND ARGUMENT…``.

With 2 as TIMES, the clocks show half of the time, and each sleep and timeout lasts twice as long:
all that the processor does seems twice as fast. With 0.33 it seems to take three times as long. New
files seem to be of the future there, or old: their times stay real.

The processes of the command, whatever their environment, have `clocks.c` preloaded, in a mount
namespace of their own: it needs root, Linux and a C compiler. What they write to /etc is lost.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.virtual_gpu.build import compiler

_SOURCE = Path(__file__).with_name("clocks.c")
#: The dynamic loader preloads what is listed here into every process.
LIST = Path("/etc/ld.so.preload")
#: The command sees a copy of /etc with a list: this machine's own may not have the file.
_INSIDE = 'cp -a /etc "$0" && cp "$0/list" "$0/etc/ld.so.preload" && mount --bind "$0/etc" /etc'


def in_use() -> bool:
    """Whether some library is preloaded into every process here, these clocks perhaps."""
    return LIST.is_file() and bool(LIST.read_text(encoding="utf-8").strip())


def build(times: float, folder: Path) -> Path:
    """Compile the clocks of a machine that is so many times as fast; its calendar starts now."""
    library = folder / "libclocks.so"
    options = ["-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    options += [f"-DTIMES={times!r}", f"-DANCHOR={int(time.time())}"]
    subprocess.run([*compiler(), *options, str(_SOURCE), "-o", str(library), "-ldl"], check=True)
    return library


def command(times: float, arguments: Sequence[str], folder: Path) -> list[str]:
    """Return the command line that runs a command so; its files are written to the folder."""
    (folder / "list").write_text(f"{build(times, folder)}\n", encoding="utf-8")
    return ["unshare", "--mount", "sh", "-c", f'{_INSIDE} && exec "$@"', str(folder), *arguments]


def main(words: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="python -m tests.tools.speed", description=__doc__)
    options.add_argument("times", type=float)
    options.add_argument("command", nargs=argparse.REMAINDER)
    given = options.parse_args(words)
    if not given.command or not 0.01 <= given.times <= 100:
        options.error("give how many times as fast, 0.01 to 100, and a command: 2 make test")
    if os.geteuid():
        options.error("only root may preload a library into all processes")
    if in_use():
        options.error(f"{LIST} is in use: clocks are changed once, and other libraries stay")
    # Other users' processes load it too.
    with tempfile.TemporaryDirectory(prefix="speed-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        return subprocess.call(command(given.times, given.command, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
