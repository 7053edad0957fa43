"""One output of a notebook's cell that any thread can update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from gpumagic.errors import SpecError


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
