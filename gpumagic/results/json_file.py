"""Results that can be written to a file as JSON; `stored` reads them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from gpumagic.errors import SpecError
from gpumagic.results.base import Result, plain
from gpumagic.system.paths import output_path
from gpumagic.system.text import harmless

#: Written into each file; `stored` refuses any other number.
VERSION = 1


class StorableResult(Result):
    """A result that can be written to a file."""

    def save(self, path: str | Path) -> Path:
        """Write the result as JSON to ``path``, for `gpumagic.load` and ``--against``.

        The file is replaced atomically: an interrupt does not change an old one.

        Raises:
            SpecError: the path cannot be that of a file, or the file cannot be written.
        """
        import tempfile

        target = output_path(path)
        content = {"gpumagic": VERSION, "kind": type(self).__name__, "result": plain(self)}
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


def _mode(target: Path) -> int:
    """Return the permissions of the file that is replaced, or those of a new file."""
    try:
        return target.stat().st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
