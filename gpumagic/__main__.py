"""``python -m gpumagic``: see `gpumagic.commands`."""

from __future__ import annotations

import sys

from gpumagic.commands import main

if __name__ == "__main__":
    sys.exit(main())
