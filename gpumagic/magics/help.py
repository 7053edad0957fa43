"""Format the help of a parser, the same on every Python and in every terminal.

The wording and wrapping of argparse differ between versions, and by the width of the terminal.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator

_WIDTH = 86
#: The column at which the help of an option begins.
_TEXT = 24


def formatted(parser: argparse.ArgumentParser) -> str:
    """Return usage, the epilog (examples), the description, and the options of each group.

    Examples come before details. The parser states its usage; description and epilog are unchanged.
    """
    usage = (parser.usage or "%(prog)s") % {"prog": parser.prog}
    groups = (_group(group) for group in parser._action_groups)
    parts = (f"usage: {usage}", parser.epilog, parser.description, *groups)
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _group(group: argparse._ArgumentGroup) -> str:
    lines = [
        line
        for action in group._group_actions
        if action.help != argparse.SUPPRESS
        for line in _action(action)
    ]
    return "\n".join([f"{group.title}:", *lines]) if lines else ""


def _action(action: argparse.Action) -> Iterator[str]:
    """Yield the lines of an option: its name and value, and beside or below them its help."""
    names = f"  {', '.join(action.option_strings)} {_value(action)}".rstrip()
    if not action.option_strings:
        names = f"  {_value(action)}"
    text = textwrap.wrap((action.help or "") % {}, _WIDTH - _TEXT)
    if len(names) <= _TEXT - 2:
        yield f"{names:<{_TEXT}}{text.pop(0) if text else ''}".rstrip()
    else:
        yield names
    yield from (f"{'':<{_TEXT}}{line}" for line in text)


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    name = action.metavar or action.dest.upper()
    return f"{name} [{name} ...]" if action.nargs == "+" else str(name)
