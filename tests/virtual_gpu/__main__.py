"""`python -m tests.virtual_gpu --devices 8 -- COMMAND …` runs a command on a virtual GPU."""

from __future__ import annotations

import argparse
import subprocess
import sys

from . import Scenario, environment, unimplemented_calls


def main() -> int:
    """Parses the command line, runs the command, and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.virtual_gpu", description=__doc__)
    parser.add_argument("--devices", type=int, default=2, help="how many GPUs (default: 2)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND ARGUMENTS")
    arguments = parser.parse_args()
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        parser.error("no command")
    try:
        status = subprocess.call(command, env=environment(Scenario(devices=arguments.devices)))
    except KeyboardInterrupt:
        status = 130
    for name, count in unimplemented_calls().items():
        print(f"virtual GPU: {name} is not implemented, called {count} times", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
