"""`python -m tests.virtual_gpu --devices 8 -- COMMAND …` runs a command on a virtual GPU."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from . import Scenario, environment, unimplemented_calls
from .world import ROOT, STATE


def main() -> int:
    """Parses the command line, runs the command, and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.virtual_gpu", description=__doc__)
    parser.add_argument("--devices", type=int, help="how many GPUs (default: 2)")
    parser.add_argument("--scenario", type=Path, help="a JSON file with fields of Scenario")
    parser.add_argument(
        "--print-env",
        action="store_true",
        help="print the variables to set for a shell that waits on this process's standard input",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND ARGUMENTS")
    arguments = parser.parse_args()
    scenario = Scenario()
    if arguments.scenario:
        scenario = Scenario.from_json(arguments.scenario.read_text())
    if arguments.devices is not None:
        scenario = replace(scenario, devices=arguments.devices)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    env = environment(scenario)
    if arguments.print_env:
        for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", STATE, ROOT):
            if name in env:
                print(f"export {name}={shlex.quote(env[name])}")
        sys.stdout.flush()
        sys.stdin.read()  # the scenario lasts as long as this process
        return 0
    if not command:
        parser.error("no command")
    try:
        status = subprocess.call(command, env=env)
    except KeyboardInterrupt:
        status = 130
    for name, count in unimplemented_calls().items():
        print(f"virtual GPU: {name} is not implemented, called {count} times", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
