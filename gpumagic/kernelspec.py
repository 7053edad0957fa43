"""Write kernelspecs whose kernels start with a selection of GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpumagic.cuda import devices, visible_devices
from gpumagic.errors import DeviceError, SpecError
from gpumagic.selection.spec import parse, resolve

#: Most characters of a name: file systems allow 255 bytes.
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
    """Write a kernelspec for this Python whose kernels start with the GPUs of ``spec``.

    The place is that of ``ipython kernel install``: system-wide, for the ``user``, or below
    ``prefix``. A ``name`` that is no valid kernelspec name ("Python (no GPU)") is the display name,
    and the kernelspec's name is derived from it.

    Raises:
        SpecError: the spec is not valid on this machine, or needs no kernelspec.
        DeviceError: the devices cannot be listed, or the folder cannot be written.
    """
    from ipykernel.kernelspec import install as install_spec

    environment = variables(spec)
    displayed = display_name or name or f"Python 3 (GPU {spec})"
    kernel_name = _kernel_name(name or displayed)
    try:
        folder = install_spec(
            user=user,
            kernel_name=kernel_name,
            display_name=displayed,
            prefix=prefix,
            env=environment,
        )
    except OSError as error:
        raise DeviceError(
            f"the kernelspec cannot be written: {error}; try --user, or --sys-prefix for this "
            "Python's own environment"
        ) from error
    return Installed(kernel_name, displayed, str(folder), environment)


def variables(spec: str) -> dict[str, str]:
    """Return the variables that select the GPUs of ``spec``.

    Raises:
        SpecError: the spec is not valid on this machine, or needs no variable.
        DeviceError: the devices cannot be listed.
    """
    parsed = parse(spec)
    if parsed.kind == "off":
        return {visible_devices.MASK: visible_devices.HIDE_ALL}
    if parsed.kind in ("on", "reset"):
        raise SpecError(f"{spec!r} needs no kernelspec: every kernel starts with these GPUs")
    if parsed.kind == "auto":
        raise SpecError(
            "'auto' chooses when it runs, which a kernelspec cannot: name GPUs here, or write "
            "%gpu auto in the notebook's first cell"
        )
    table = devices.devices(processes=False)
    devices.check(table)
    return visible_devices.choice(resolve(parsed, table), table)


def _kernel_name(text: str) -> str:
    """Derive the name of a kernelspec: ASCII letters, digits, dot, minus, underscore.

    It is the name of a folder whose content is replaced: never ``.``, ``..`` or a hidden one.

    Raises:
        SpecError: no character of ``text`` is valid in a name.
    """
    name = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-.")
    if not name:
        raise SpecError(
            f"{text!r} has no character that a kernelspec's name can have; give another --name"
        )
    return name[:_LONGEST]
