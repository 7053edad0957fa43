"""rich's classes for `text`, imported so that a seeded notebook draws the numbers that it would.

rich draws one from Python's generator when it is imported.
"""

import random

__all__ = ["Console", "Text"]

_state = random.getstate()
try:
    from rich.console import Console
    from rich.text import Text
finally:
    random.setstate(_state)
