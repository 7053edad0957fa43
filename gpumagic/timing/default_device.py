"""torch's default device for a run of some code: CPU against GPU, one GPU against another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from gpumagic.cuda import torch_cuda
from gpumagic.errors import SpecError


def parse(spec: str) -> tuple[str, ...]:
    """Parse and check a list of devices, ``cpu,cuda:0,cuda:1``. Imports torch.

    Raises:
        SpecError: not a device of this kernel, or one named twice.
        DeviceError: torch cannot be imported.
    """
    torch: Any = torch_cuda.require()
    names: list[str] = []
    for word in spec.replace(",", " ").split():
        try:
            device = torch.device(word)
        except RuntimeError:
            raise SpecError(f"{word!r} is not a device; write cpu or cuda:0") from None
        name = str(device)
        if device.type == "cuda":
            name = f"cuda:{device.index or 0}"
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if (device.index or 0) >= count:
                there = ", ".join(f"cuda:{i}" for i in range(count)) or "no GPU"
                raise SpecError(f"there is no {name}: this kernel sees {there}")
        elif device.type != "cpu":
            module = getattr(torch, device.type, None)
            if module is None or not getattr(module, "is_available", lambda: False)():
                raise SpecError(f"there is no {name} on this machine")
        if name in names:
            raise SpecError(f"{name} is named twice")
        names.append(name)
    if not names:
        raise SpecError("no device is named; write cpu,cuda:0")
    return tuple(names)


@contextmanager
def default_device(name: str) -> Iterator[None]:
    """Make a device torch's default one, and ``gpumagic.device()``, inside the scope."""
    torch: Any = torch_cuda.require()
    device = torch.device(name)
    with ExitStack() as scope:
        if device.type == "cuda":
            scope.enter_context(torch.cuda.device(device))
        scope.enter_context(torch_cuda.chosen(device))
        scope.enter_context(device)
        yield
