"""The plan of repeated runs that the options of ``%cudatime`` ask for."""

from __future__ import annotations

import argparse

from gpumagic.timing.plan import Plan


def setup_code(options: argparse.Namespace, above: str) -> str:
    """Return the setup: the code of ``-s``, and that ``above`` the cell, on the magic's line."""
    return "\n".join(code for code in (options.setup, above) if code)


def only_for_energy(options: argparse.Namespace) -> bool:
    """Return whether the run is a repeated one by ``--energy`` alone."""
    asked = options.repeated or options.setup is not None or plan(options) != Plan()
    return options.energy and not asked


def plan(options: argparse.Namespace) -> Plan:
    """Return the plan that the options ask for.

    Raises:
        SpecError: they contradict each other.
    """
    return Plan(
        options.loops,
        options.repeat,
        options.warmup,
        options.precision,
        options.max_time,
        options.queued,
        options.cold,
    )
