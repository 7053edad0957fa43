"""The command line: ``gpumagic``, or ``python -m gpumagic``."""

from __future__ import annotations

import argparse
import sys
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
  gpumagic kernel install --user --gpu off --name "Python (no GPU)"
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
    kernel = commands.add_parser("kernel", help="kernels that start with a selection of GPUs")
    actions = kernel.add_subparsers(dest="action", metavar="ACTION", required=True)
    install = actions.add_parser(
        "install",
        help="write a kernelspec",
        description="Write a kernelspec of this Python, for Jupyter's launcher, whose kernels "
        "start with a selection of GPUs. It is written where 'ipython kernel install' does.",
    )
    install.add_argument(
        "--gpu",
        metavar="SPEC",
        required=True,
        help="off, an index, a list (0,2), a range (1-3), a UUID or its beginning: "
        "resolved to UUIDs now",
    )
    install.add_argument(
        "--name", help="name of the kernelspec, and its display name if it has blanks or capitals"
    )
    install.add_argument("--display-name", metavar="NAME", help="name in the launcher")
    place = install.add_mutually_exclusive_group()
    place.add_argument("--user", action="store_true", help="for this user, not system-wide")
    place.add_argument("--prefix", metavar="FOLDER", help="below this folder")
    place.add_argument(
        "--sys-prefix",
        action="store_const",
        const=sys.prefix,
        dest="prefix",
        help="in this Python's own environment",
    )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of this process, and return the exit status."""
    options = parser().parse_args(arguments)
    try:
        if options.command == "kernel":
            _install(options)
        else:
            _show(options)
    except GpuMagicError as error:
        from gpumagic.system.text import harmless_lines

        complain(f"gpumagic: {harmless_lines(str(error))}")
        return 1
    return 0


def _show(options: argparse.Namespace) -> None:
    from gpumagic import doctor
    from gpumagic.cuda import devices

    as_json = options.command is not None and options.json
    if options.command != "doctor":
        _print(devices.devices(), as_json=as_json)
    if options.command is None:
        Output().print("")
    if options.command != "table":
        _print(doctor.diagnose(), as_json=as_json)


def _print(result: Result, *, as_json: bool) -> None:
    """Print a result in the characters that standard output has, folded between words."""
    from gpumagic.render import text

    output = Output()
    output.print(result.to_json(indent=2) if as_json else text.drawn(result._blocks(), output))


def _install(options: argparse.Namespace) -> None:
    from gpumagic import kernelspec

    installed = kernelspec.install(
        options.gpu,
        name=options.name,
        display_name=options.display_name,
        user=options.user,
        prefix=options.prefix,
    )
    variables = ", ".join(f"{name}={value}" for name, value in installed.environment.items())
    Output().print(
        f"Installed kernelspec {installed.name} ({installed.display_name!r}) in {installed.folder}"
        f"\nIts kernels start with {variables}"
    )
