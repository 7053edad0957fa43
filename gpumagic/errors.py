"""The exceptions and warnings of gpumagic.

::

    Exception
    └── GpuMagicError          every error that gpumagic raises on purpose; one clear line
        ├── SpecError          a device specification, or an option's value, that means nothing here
        ├── DeviceError        the devices, or their driver, cannot do what was asked
        ├── RestartError       the kernel cannot be restarted in place; nothing was changed
        └── DependencyError    an optional package that this needs is not installed
    UserWarning
    └── GpuMagicWarning        what was asked for did not, or may not, take effect

The magics turn a ``GpuMagicError`` into IPython's ``UsageError``, so that a notebook shows one line
and no traceback. From a script the exceptions arrive as they are.
"""

from __future__ import annotations


class GpuMagicError(Exception):
    """Base of every error that gpumagic raises on purpose."""


class SpecError(GpuMagicError, ValueError):
    """A device specification, or an option's value, that means nothing on this machine."""


class DeviceError(GpuMagicError, RuntimeError):
    """The devices, or their driver, cannot do what was asked."""


class RestartError(GpuMagicError, RuntimeError):
    """The kernel cannot be restarted in place; nothing was changed."""


class DependencyError(GpuMagicError, ImportError):
    """An optional package that this needs is not installed."""


class GpuMagicWarning(UserWarning):
    """What was asked for did not, or may not, take effect."""
