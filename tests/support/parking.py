"""Which torch can park memory."""

from __future__ import annotations

from importlib.metadata import version

import pytest

#: What guards parked memory came with torch 2.12.
CAN_PARK = tuple(map(int, version("torch").split(".")[:2])) >= (2, 12)
needs_parking = pytest.mark.skipif(not CAN_PARK, reason="torch before 2.12 cannot park memory")
