"""Results that can be written to a file as JSON; `stored` reads them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.results.base import Result, plain
from gpumagic.system.paths import output_path
from gpumagic.system.text import harmless

#: Written into each file; `stored` refuses any other number.
VERSION = 1
#: The most repeats that are written and read: to compare two such results takes some seconds.
MOST = 100_000


class StorableResult(Result):
    """A result that can be written to a file."""

    def save(self, path: str | Path) -> Path:
        """Write the result as JSON to ``path``, for `gpumagic.load` and ``--against``.

        The file is replaced atomically: an interrupt does not change an old one.

        Raises:
            SpecError: the path cannot be that of a file, the file cannot be written, or there are
                too many repeats.
        """
        import tempfile

        target = output_path(path)
        content = {"gpumagic": VERSION, "kind": type(self).__name__, "result": plain(self)}
        if (count := longest_row(content)) > MOST:
            raise SpecError(
                f"cannot write {harmless(str(path), 200)}: {count:,} repeats; at most {MOST:,} are "
                "stored"
            )
        text = json.dumps(content, indent=1)
        try:
            with tempfile.NamedTemporaryFile(
                "w",
                dir=target.parent,
                prefix=f".{target.name[:100]}.",
                delete=False,
                encoding="utf-8",
            ) as file:
                try:
                    file.write(text + "\n")
                    file.close()
                    Path(file.name).chmod(_mode(target))
                    Path(file.name).replace(target)
                except BaseException:
                    Path(file.name).unlink()
                    raise
        except OSError as error:
            raise SpecError(
                f"cannot write {harmless(str(path), 200)}: {error.strerror or error}"
            ) from None
        return target


def longest_row(content: Any) -> int:
    """Return the number of values in the longest list, wherever it is."""
    if isinstance(content, dict):
        return max(map(longest_row, content.values()), default=0)
    if not isinstance(content, list):
        return 0
    deeper = (longest_row(each) for each in content if isinstance(each, (dict, list)))
    return max(len(content), *deeper, 0)


def _mode(target: Path) -> int:
    """Return the permissions of the file that is replaced, or those of a new file."""
    try:
        return target.stat().st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
