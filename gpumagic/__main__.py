"""``python -m gpumagic``: see `gpumagic.cli`.

``-m`` puts the working folder on the path, from which nothing is to be imported; what Python itself
has imported by now, only the command ``gpumagic`` spares.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    sys.path[:1] = [folder for folder in sys.path[:1] if folder not in ("", os.getcwd())]  # noqa: PTH109

from gpumagic.cli import main

if __name__ == "__main__":
    sys.exit(main())
