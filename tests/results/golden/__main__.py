"""Write the files anew."""

from __future__ import annotations

from tests.results.examples import EXAMPLES
from tests.results.golden import FOLDER, drawings

for old in FOLDER.glob("[A-Z]*"):
    old.unlink()
for name, result in EXAMPLES.items():
    for suffix, content in drawings(result).items():
        (FOLDER / f"{name}{suffix}").write_text(content, encoding="utf-8")
