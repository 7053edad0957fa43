"""Paths as a user writes them: what cannot be one is said in a line, before anything is done."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gpumagic.errors import SpecError
from gpumagic.system.text import harmless


def written(text: str | Path) -> Path:
    """The path that is meant, whether or not there is anything.

    Raises:
        SpecError: it can be none, or may not be looked at.
    """
    return _looked_at(text)[0]


def of_new_file(text: str | Path) -> Path:
    """The path of a file to be written, anew or over another one.

    Opening a pipe would wait for its reader.

    Raises:
        SpecError: something else is there, or no folder to put it into.
    """
    path, found = _looked_at(text)
    if found is None:
        if not path.parent.is_dir():
            raise SpecError(f"cannot write {_shown(text)}: there is no folder {path.parent}")
    elif stat.S_ISDIR(found.st_mode):
        raise SpecError(f"cannot write {_shown(text)}: that is a folder")
    elif not stat.S_ISREG(found.st_mode):
        raise SpecError(f"cannot write {_shown(text)}: that is no regular file")
    return path


def _looked_at(text: str | Path) -> tuple[Path, os.stat_result | None]:
    try:
        path = Path(text).expanduser()
        return path, path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return path, None
    except RuntimeError:  # of expanduser
        start = _shown(Path(text).parts[0])
        raise SpecError(f"{_shown(text)}: no home folder is known for {start}") from None
    except OSError as error:
        raise SpecError(f"{_shown(text)}: {error.strerror or 'no such path'}") from None
    except ValueError:
        raise SpecError(f"{_shown(text)}: no path has such characters") from None


def _shown(text: str | Path) -> str:
    return harmless(str(text), 200)
