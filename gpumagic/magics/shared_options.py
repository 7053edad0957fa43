"""Options of several magics: results in files, and the engines of a cluster."""

from __future__ import annotations

from typing import Any

from gpumagic.magics.argument_types import excess
from gpumagic.magics.parsing import Parser

#: The options of `add_baseline`.
BASELINE = {"--save", "--against", "--fail-above", "--strict"}


def add_baseline(parser: Parser, fails: str) -> None:
    """Add ``--save``, ``--against``, ``--fail-above`` and ``--strict``; ``fails`` says at what."""
    group = parser.add_argument_group("results in files")
    group.add_argument("--save", metavar="FILE", help="write the result to FILE, as JSON")
    group.add_argument(
        "--against", metavar="FILE", help="compare with the result that --save wrote to FILE"
    )
    group.add_argument(
        "--fail-above",
        metavar="PERCENT",
        type=excess,
        help=f"with --against: fail the cell with a RegressionError if {fails}, for example "
        "10%%; not where device, driver or torch are others than in FILE",
    )
    group.add_argument(
        "--strict",
        action="store_true",
        help="with --against: fail also where device, driver or torch are others",
    )


def add_targets(group: Any) -> None:
    """Add ``--cluster`` and ``-t``, which every magic has."""
    group.add_argument(
        "--cluster",
        action="store_true",
        help="on the engines of ipyparallel's cluster, not in this kernel",
    )
    group.add_argument(
        "-t",
        "--targets",
        metavar="ENGINES",
        help="only these engines: 2, 0,3, 0:4 (default: all of them)",
    )
