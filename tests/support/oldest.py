"""Print the lowest version of each dependency that pyproject.toml allows, as pip requirements.

``python tests/support/oldest.py > requirements.txt`` (``make test-oldest``).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def lowest(project: dict[str, Any]) -> list[str]:
    """``name>=1.2`` becomes ``name==1.2``, for the dependencies and every extra."""
    extras = project.get("optional-dependencies", {}).values()
    wanted = [*project["dependencies"], *(item for extra in extras for item in extra)]
    return [_lowest(requirement) for requirement in wanted]


def _lowest(requirement: str) -> str:
    match = re.fullmatch(r"([A-Za-z0-9._-]+)\s*>=\s*([0-9][0-9A-Za-z.]*)\s*(;.*)?", requirement)
    if match is None:
        raise ValueError(f"{requirement!r} has no single lower bound")
    name, version, marker = match.groups()
    return f"{name}=={version}{marker or ''}"


def _toml(text: str) -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10: pip carries its own
        from pip._vendor import tomli as tomllib
    return tomllib.loads(text)


if __name__ == "__main__":
    print("\n".join(lowest(_toml((ROOT / "pyproject.toml").read_text())["project"])))
