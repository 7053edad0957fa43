"""Results that are written to a file; `stored` reads them, and knows which there are."""

from __future__ import annotations

import json
from pathlib import Path

from gpumagic.results.base import Result
from gpumagic.system.writing import output_path, replacing

#: Written into each file; `stored.load` refuses any other number.
VERSION = 2


class StorableResult(Result):
    """A result that can be written to a file."""

    def save(self, path: str | Path) -> Path:
        """Write the result as JSON to ``path``, for `gpumagic.load` and ``--against``.

        An old file is replaced at once: an interrupt does not change it.

        Raises:
            SpecError: the path cannot be that of a file, or the file cannot be written.
        """
        target = output_path(path)
        content = {"gpumagic": VERSION, "kind": type(self).__name__, "result": self.to_dict()}
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"
        with replacing(target) as made:
            made.write_text(text, encoding="utf-8")
        return target
