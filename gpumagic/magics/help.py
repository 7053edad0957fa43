"""Format the help of a parser, the same on every Python and in every terminal.

The wording and wrapping of argparse differ between versions, and by the width of the terminal.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator

#: A terminal of 80 columns breaks longer lines within a word.
_WIDTH = 79
#: The column at which the help of an option begins.
_TEXT = 24


def formatted(parser: argparse.ArgumentParser) -> str:
    """Return usage, the epilog (examples), the description, and the options of each group.

    Examples come before details. The parser states its usage.
    """
    usage = (parser.usage or "%(prog)s") % {"prog": parser.prog}
    groups = (_group(group) for group in parser._action_groups)
    texts = (_wrapped(text or "") for text in (parser.epilog, parser.description))
    parts = (f"usage: {usage}", *texts, *groups)
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


#: A command or a word, and beside it its explanation.
_ENTRY = re.compile(r"( +\S.*? {2,})(\S.*)")


def _wrapped(text: str) -> str:
    """Return a text with its paragraphs and explanations wrapped at the width.

    A line that is indented as far as the explanation above continues it.
    """
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        before, here = found[-1] if found else ("", "")
        content = line.lstrip()
        indent = len(line) - len(content)
        continues = indent == len(before) and (not indent or before.strip())
        if content and here and continues and not here.endswith(":"):
            found[-1] = (before, f"{here} {content}")
        elif entry := _ENTRY.fullmatch(line):
            found.append((entry[1], entry[2]))
        else:
            found.append((line[:indent], content))
    return "\n".join(
        textwrap.fill(
            content,
            _WIDTH,
            initial_indent=before,
            subsequent_indent=" " * len(before),
            break_on_hyphens=False,
        )
        for before, content in found
    )


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
