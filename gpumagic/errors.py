"""The exceptions and warnings of gpumagic.

::

    Exception
    └── GpuMagicError          every error that gpumagic raises on purpose; one clear line
        ├── SpecError          a device specification, or an option's value, is not valid here
        ├── DeviceError        the devices, or their driver, cannot do what was requested
        ├── RestartError       the kernel cannot be restarted in place; nothing was changed
        ├── DependencyError    an optional package that is needed is not installed
        └── RegressionError    the code is slower, or needs more memory, than its stored result
    UserWarning
    └── GpuMagicWarning        a request did not, or may not, take effect

The magics turn a ``GpuMagicError`` into IPython's ``UsageError``, so that a notebook shows one line
and no traceback. A script gets the exceptions themselves.
"""

from __future__ import annotations


class GpuMagicError(Exception):
    """Base class of every error that gpumagic raises on purpose."""


class SpecError(GpuMagicError, ValueError):
    """A device specification, or an option's value, is not valid on this machine."""


class DeviceError(GpuMagicError, RuntimeError):
    """The devices, or their driver, cannot do what was requested."""


class RestartError(GpuMagicError, RuntimeError):
    """The kernel cannot be restarted in place; nothing was changed."""


class DependencyError(GpuMagicError, ImportError):
    """An optional package that is needed is not installed."""


class RegressionError(GpuMagicError, AssertionError):
    """The code is slower, or needs more memory, than the stored result allows."""

    def _render_traceback_(self) -> list[str]:
        """Return the line that IPython shows: the traceback would only have frames of gpumagic."""
        return [f"RegressionError: {self}"]


class GpuMagicWarning(UserWarning):
    """A request did not, or may not, take effect."""
