"""``python -m gpumagic``: see `gpumagic.cli`.

``-m`` adds the working folder to the import path; it is removed before gpumagic imports anything.
Python itself has imported modules before that: only the command ``gpumagic`` avoids this.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    sys.path[:1] = [folder for folder in sys.path[:1] if folder not in ("", os.getcwd())]  # noqa: PTH109

from gpumagic.cli import main

if __name__ == "__main__":
    sys.exit(main())
