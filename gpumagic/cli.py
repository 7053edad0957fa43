"""The command line: ``gpumagic``, or ``python -m gpumagic``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpumagic.errors import GpuMagicError
from gpumagic.system.output import Output, complain

if TYPE_CHECKING:
    from gpumagic.results.base import Result

_EXAMPLES = """\
examples:
  gpumagic                    the table of devices, and the doctor's report
  gpumagic doctor --json      the report as data
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line ``gpumagic``."""
    options = argparse.ArgumentParser(
        "gpumagic",
        description="Show the GPUs and why torch can, or cannot, use them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = options.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in (
        ("table", "the table of devices"),
        ("doctor", "why torch can, or cannot, use the GPU here"),
    ):
        shown = commands.add_parser(name, help=text, description=text)
        shown.add_argument("--json", action="store_true", help="print it as JSON")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of this process, and return the exit status."""
    options = parser().parse_args(arguments)
    try:
        return _show(options.command, as_json=options.command is not None and options.json)
    except GpuMagicError as error:
        from gpumagic.system.text import harmless_lines

        complain(f"gpumagic: {harmless_lines(str(error))}")
        return 1


def _show(command: str | None, *, as_json: bool) -> int:
    """Print what is asked for; return 1 where the doctor alone is asked, and something is wrong."""
    from gpumagic import doctor
    from gpumagic.selection import table

    if command != "doctor":
        _print(table.devices(), as_json=as_json)
    if command is None:
        Output().print("")
    if command == "table":
        return 0
    report = doctor.diagnose()
    _print(report, as_json=as_json)
    return int(command == "doctor" and any(found.status == "bad" for found in report))


def _print(result: Result, *, as_json: bool) -> None:
    """Print a result in the characters that standard output has, folded between words."""
    from gpumagic.render import text

    output = Output()
    output.print(result.to_json(indent=2) if as_json else text.drawn(result.blocks(), output))
