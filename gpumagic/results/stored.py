"""Results in files: written as JSON, read back as data and nothing else."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.results.base import plain
from gpumagic.results.deserialize import from_plain
from gpumagic.results.memory import MemoryDelta
from gpumagic.results.timing import CudaTiming
from gpumagic.system.paths import output_path, user_path
from gpumagic.system.text import harmless

#: Written into each file; a reader of another number refuses.
VERSION = 1
#: Bytes of a file, at most: a million repeats fit.
LARGEST = 64 * 2**20
_KINDS: dict[str, Any] = {"CudaTiming": CudaTiming, "MemoryDelta": MemoryDelta}


def save(result: CudaTiming | MemoryDelta, path: str | Path) -> Path:
    """Write ``result`` as JSON to ``path``, in one step: an interrupt leaves the old file.

    Raises:
        SpecError: the path cannot be that of a file, or the file cannot be written.
    """
    target = output_path(path)
    content = {
        "gpumagic": VERSION,
        "kind": type(result).__name__,
        "result": plain(result),
    }
    text = json.dumps(content, indent=1)
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=target.parent, prefix=f".{target.name[:100]}.", delete=False, encoding="utf-8"
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
        raise SpecError(f"cannot write {_shown(path)}: {error.strerror or error}") from None
    return target


def _mode(target: Path) -> int:
    """The permissions of the file that is replaced, or those of any new file."""
    try:
        return target.stat().st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def load(path: str | Path) -> CudaTiming | MemoryDelta:
    """Read a result that `save` wrote.

    The file's content is data: nothing of it is executed, and what is not a result's is refused.

    Raises:
        SpecError: there is no such file, or it holds no result.
    """
    source = user_path(path)
    try:
        if source.exists() and not source.is_file():
            raise SpecError(f"{_shown(path)} is no regular file")
        with source.open(encoding="utf-8") as file:
            text = file.read(LARGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise SpecError(f"cannot read {_shown(path)}: {reason}") from None
    if len(text) > LARGEST:
        raise SpecError(f"{_shown(path)} is larger than any result of gpumagic")
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("kind") not in _KINDS:
            raise ValueError("no result")
        if content.get("gpumagic") != VERSION:
            raise SpecError(f"{_shown(path)} was written by another version of gpumagic")
        result: CudaTiming | MemoryDelta = from_plain(
            _KINDS[content["kind"]], content["result"], tolerant=True
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(
            f"{_shown(path)} holds no result of gpumagic; --save FILE, or .save(path), writes one"
        ) from None
    return result


def _shown(path: str | Path) -> str:
    return harmless(str(path), 200)
