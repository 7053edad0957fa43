"""GPU devices, GPU time and GPU memory for PyTorch users of Jupyter and IPython.

In a notebook, ``%load_ext gpumagic`` and then ``%gpu``, ``%%cudatime`` and ``%gpumem``. In a
script, the functions of `gpumagic.public`; each magic is a thin wrapper of one of them.

Importing this package imports nothing but the standard library: no torch, no pynvml, no rich.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpumagic._version import __version__ as __version__

if TYPE_CHECKING:
    from gpumagic.public import *  # noqa: F403
    from gpumagic.system.shell import Shell


def __getattr__(name: str) -> Any:
    """Import the public names when the first of them is used (PEP 562)."""
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    public = import_module(f"{__name__}.public")
    if name == "__all__":
        return ["__version__", *(each for each in vars(public) if not each.startswith("_"))]
    try:
        value = globals()[name] = vars(public)[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})


def load_ipython_extension(shell: Shell) -> None:
    """Register the magics (``%load_ext gpumagic``)."""
    from gpumagic.magics.loading import load

    load(shell)


def unload_ipython_extension(shell: Shell) -> None:
    """Undo all changes by loading and by the magics (``%unload_ext gpumagic``)."""
    from gpumagic.magics.loading import unload

    unload(shell)
