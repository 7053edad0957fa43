"""The version of gpumagic."""

__version__ = "0.1.0"
