"""Requests given to a kernel as if they had just arrived."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.restart import shell_queue


def _kernel(callback: Any, *, threaded: bool) -> Any:
    stream = SimpleNamespace(_recv_callback=callback)
    if not threaded:  # ipykernel 6
        return SimpleNamespace(shell_stream=stream)
    manager = SimpleNamespace(_shell_channel_to_main=SimpleNamespace(to_stream=stream))
    return SimpleNamespace(shell_channel_thread=SimpleNamespace(manager=manager))


@pytest.mark.parametrize("threaded", [True, False])
@pytest.mark.parametrize("awaits", [True, False])
def test_requests_are_handled_in_order(threaded: bool, awaits: bool) -> None:
    handled: list[list[bytes]] = []

    def handle(parts: list[Any]) -> None:
        handled.append([part.bytes for part in parts])

    async def handle_async(parts: list[Any]) -> None:
        await asyncio.sleep(0)
        handle(parts)

    kernel = _kernel(handle_async if awaits else handle, threaded=threaded)
    assert shell_queue.request_stream(kernel)._recv_callback

    async def main() -> None:
        shell_queue.put(kernel, [[b"1", b"a"], [b"2"]])
        assert len(shell_queue._tasks) == (2 if awaits else 0)
        while shell_queue._tasks:
            await asyncio.sleep(0)

    asyncio.run(main())
    assert handled == [[b"1", b"a"], [b"2"]]


def test_another_version_of_ipykernel() -> None:
    with pytest.raises(AttributeError):
        shell_queue.request_stream(SimpleNamespace(shell_channel_thread=object()))
