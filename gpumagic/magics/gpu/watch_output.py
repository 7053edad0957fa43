"""One output of a notebook's cell that any thread can update; whether the client is a console."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from gpumagic.errors import SpecError

#: The ids of requests from `jupyter_client`: of its session, its process, and a number.
_PYTHON_CLIENT = re.compile(r".+_\d+_\d+")


class CellOutput:
    """An output of the current cell.

    Updates are sent to the front end directly: publishing them as IPython does would flush the
    user's streams in another thread, and count them to the cell that is running then.

    Raises:
        SpecError: the output of this cell is captured and not shown.
    """

    def __init__(self, shell: Any) -> None:
        self._publisher = shell.display_pub
        self._session: Any = getattr(self._publisher, "session", None)
        if self._session is None:
            raise SpecError("%gpu watch: the output of this cell is captured, not shown: no panel")
        self._parent = self._publisher.parent_header
        self._transient = {"display_id": uuid4().hex}
        self._shown = False

    def show(self, bundle: Mapping[str, str]) -> None:
        """Show the output, or replace what it shows."""
        if not self._shown:
            self._publisher.publish(dict(bundle), transient=self._transient)
            self._shown = True
            return
        content = {"data": dict(bundle), "metadata": {}, "transient": self._transient}
        message = self._session.msg("update_display_data", content, parent=self._parent)
        self._session.send(self._publisher.pub_socket, message, ident=self._publisher.topic)


def is_console(shell: Any) -> bool:
    """Return whether the current cell comes from a client in a terminal, as ``jupyter console``.

    Such clients ignore updates of an output, and print text as it arrives. They do not identify
    themselves: their requests are those of `jupyter_client`, allow questions on standard input, and
    name no cell as those of notebooks do.
    """
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return False
    request = kernel.get_parent("shell")
    return (
        _PYTHON_CLIENT.fullmatch(str(request.get("header", {}).get("msg_id", ""))) is not None
        and bool(request.get("content", {}).get("allow_stdin"))
        and "cellId" not in request.get("metadata", {})
    )
