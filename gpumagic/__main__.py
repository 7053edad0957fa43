"""``python -m gpumagic``: see `gpumagic.cli`."""

import sys

from gpumagic.cli import main

if __name__ == "__main__":
    sys.exit(main())
