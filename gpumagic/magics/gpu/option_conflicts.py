"""Which options of ``%gpu`` go together: an option without effect is an error."""

from __future__ import annotations

import argparse
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import percentage, size
from gpumagic.selection.spec import Wants


def check(options: argparse.Namespace, spec: str, *, is_choice: bool, one_cell: bool) -> None:
    """Check that every option that is used has an effect beside the others.

    ``is_choice`` tells whether ``spec`` is a choice of GPUs and not a verb.

    Raises:
        SpecError: an option has none; the message says what it goes with.
    """
    lasting = is_choice and not one_cell
    listed = spec == "ps" or options.processes
    a_choice = "a choice of GPUs" if not one_cell else "%gpu, not with %%gpu, which is for one cell"
    for name, used, fits, partner in (
        ("-p", options.processes, spec in ("", "ps", "watch"), "the table; for example: %gpu -p"),
        ("--arguments", options.arguments, listed, "the processes: %gpu -p --arguments"),
        ("--mine", options.mine, spec == "ps", "ps: %gpu ps --mine"),
        ("--yes", options.yes, spec.startswith("shutdown "), "shutdown: %gpu shutdown NAME --yes"),
        ("--every", options.every is not None, spec == "watch", "watch: %gpu watch --every 5"),
        ("--for", options.duration is not None, spec == "watch", "watch: %gpu watch --for 60"),
        ("--threads", options.threads is not None, is_choice, _example(a_choice, "--threads 4")),
        ("--no-claim", options.no_claim, is_choice, _example(a_choice, "--no-claim")),
        ("--soft", options.soft, is_choice, _example(a_choice, "--soft")),
        ("--restart", options.restart, lasting, _example(a_choice, "--restart")),
        ("--save", options.save, lasting, _example(a_choice, "--save")),
        ("--keep", options.keep, options.restart, _example("--restart", "--restart --keep model")),
        (
            "--blocking",
            options.blocking,
            options.restart,
            "--restart; for example: %gpu reset --restart --blocking",
        ),
        ("--force", options.force, options.restart, _example("--restart", "--restart --force")),
    ):
        if used and not fits:
            raise SpecError(f"{name} goes with {partner}")
    _check_auto(options, spec)
    if options.soft and options.save:
        raise SpecError("--save is for a choice of devices, not for a gate (--soft): leave one out")
    if options.soft and options.restart:
        raise SpecError("--soft is for going on without a restart: leave --soft or --restart out")
    if options.soft and options.wait > 0:
        raise SpecError("--wait does not go with --soft, which chooses at once: leave one out")


def _example(partner: str, options: str) -> str:
    return f"{partner}; for example: %gpu off {options}"


def _is_auto(spec: str) -> bool:
    return spec.split(" ")[0].lower() == "auto"


def _check_auto(options: argparse.Namespace, spec: str) -> None:
    """Check that options for ``auto`` are used only with it.

    Raises:
        SpecError: one is used without it.
    """
    used = [
        name
        for name, value in (
            ("--min-free", options.min_free is not None),
            ("--max-util", options.max_util is not None),
            ("--idle", options.idle),
            ("--wait", options.wait > 0),
        )
        if value
    ]
    if used and not _is_auto(spec):
        raise SpecError(f"{used[0]} goes with auto; for example: %gpu auto {used[0]} …")


def wants(options: argparse.Namespace, magics: Any, spec: str) -> Wants:
    """Return what ``auto`` requires of a device, by the options or by the configuration.

    Raises:
        SpecError: a configured value is not valid.
    """
    if not _is_auto(spec):
        return Wants()
    try:
        min_free, max_util = options.min_free, options.max_util
        if min_free is None and magics.min_free:
            min_free = size(magics.min_free)
        if max_util is None and magics.max_util:
            max_util = percentage(magics.max_util)
    except argparse.ArgumentTypeError as error:
        raise SpecError(f"%config GpuMagic: {error}") from None
    return Wants(min_free=min_free, max_util=max_util, idle=options.idle)
