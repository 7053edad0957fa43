"""A kernelspec that starts a kernel with the choice of GPUs made."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gpumagic.cuda import devices, visible_devices
from gpumagic.errors import DeviceError, SpecError
from gpumagic.selection import spec as visibility

#: Characters of a name: a file system takes 255 bytes.
_LONGEST = 100


@dataclass(frozen=True)
class Installed:
    """A kernelspec that was written."""

    name: str
    display_name: str
    folder: str
    #: The variables that its kernels start with.
    environment: dict[str, str]


def install(
    spec: str,
    *,
    name: str | None = None,
    display_name: str | None = None,
    user: bool = False,
    prefix: str | None = None,
) -> Installed:
    """Write a kernelspec for this Python whose kernels start under the choice ``spec``.

    Where it goes is as with ``ipython kernel install``: system-wide, for the ``user``, or under
    ``prefix``. A ``name`` that cannot name a kernelspec ("Python (no GPU)") is displayed, and
    the name is made from it.

    Raises:
        SpecError: the spec means nothing on this machine, or needs no kernelspec.
        DeviceError: the devices cannot be listed, or the folder cannot be written.
    """
    from ipykernel.kernelspec import install as install_spec

    environment = variables(spec)
    shown = display_name or name or f"Python 3 (GPU {spec})"
    known = _kernel_name(name or shown)
    try:
        folder = install_spec(
            user=user, kernel_name=known, display_name=shown, prefix=prefix, env=environment
        )
    except OSError as error:
        raise DeviceError(
            f"the kernelspec cannot be written: {error}; try --user, or --sys-prefix for this "
            "Python's own environment"
        ) from error
    return Installed(known, shown, str(folder), environment)


def variables(spec: str) -> dict[str, str]:
    """The variables that make the choice ``spec`` from a kernel's start; numbers become UUIDs.

    Raises:
        SpecError: the spec means nothing on this machine, or no variable can express it.
        DeviceError: the devices cannot be listed, or not enough are free.
    """
    parsed = visibility.parse(spec)
    if parsed.kind == "off":
        return {visible_devices.MASK: visible_devices.HIDE_ALL}
    if parsed.kind in ("on", "reset"):
        raise SpecError(f"{spec!r} is how every kernel starts; it needs no kernelspec of its own")
    table = devices.devices(processes=False)
    devices.check(table)
    if parsed.kind == "auto":
        whole = [replace(device, instance=None) for device in table]
        chosen = visibility.pick(whole, parsed.count, visibility.Wants())
    else:
        chosen = visibility.resolve(parsed, table)
    return {visible_devices.MASK: ",".join(chosen)}


def _kernel_name(text: str) -> str:
    """``text`` as the name of a kernelspec: ASCII letters, digits, dot, minus, underscore.

    It becomes one folder among the kernelspecs, whose content is replaced: never ``.`` or ``..``,
    and none that is hidden.

    Raises:
        SpecError: nothing of it can name one.
    """
    name = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-.")
    if not name:
        raise SpecError(f"{text!r} has nothing that could name a kernelspec; give --name")
    return name[:_LONGEST]
