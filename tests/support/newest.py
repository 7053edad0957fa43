"""Whether torch is one that words its messages as the committed outputs have them."""

from __future__ import annotations

import platform
from importlib.metadata import version

#: For the message of a test that compares what is shown with what is committed.
VERSIONS = f"with Python {platform.python_version()} and torch {version('torch')}"

#: Older versions word some of them otherwise.
IS_NEWEST = tuple(map(int, version("torch").split(".")[:2])) >= (2, 12)
