"""Python source in colours, by pygments; imported where source is drawn in colour."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from gpumagic.render import colors
from gpumagic.system.text import harmless

if TYPE_CHECKING:
    from rich.text import Text

#: Longer sources are drawn without colours: pygments takes a second for 500,000 characters.
_LONGEST = 200_000
_COLOR = re.compile(r"color: (#\w{6})")


@dataclass
class SourceCode:
    """Lines of source, tabs expanded; each is coloured as a part of the whole."""

    lines: Sequence[str]

    def __post_init__(self) -> None:
        self.lines = [harmless(line.expandtabs(4)) for line in self.lines]

    @property
    def is_long(self) -> bool:
        """Whether it is drawn without colours."""
        return sum(map(len, self.lines)) > _LONGEST

    @cached_property
    def html(self) -> list[str]:
        """Each line in HTML."""
        from pygments import highlight, token
        from pygments.formatters.html import HtmlFormatter
        from pygments.lexers.python import PythonLexer
        from pygments.style import Style

        class Colors(Style):  # type: ignore[misc]
            styles = {  # noqa: RUF012 - so pygments has it
                token.Keyword: colors.CODE["keyword"],
                token.Operator.Word: colors.CODE["keyword"],
                token.String: colors.CODE["string"],
                token.Number: colors.CODE["number"],
                token.Comment: colors.CODE["comment"],
                **dict.fromkeys(
                    (token.Name.Function, token.Name.Class, token.Name.Builtin), colors.CODE["name"]
                ),
            }

        formatter = HtmlFormatter(style=Colors, noclasses=True, nowrap=True)
        lexer = PythonLexer(stripnl=False, ensurenl=False)
        drawn = highlight("\n".join(self.lines), lexer, formatter)
        drawn = _COLOR.sub(lambda found: colors.text(found[1]), drawn)
        # nbconvert reduces a text of blanks alone to one, and with it the indentation.
        drawn_lines = drawn.split("\n")[: len(self.lines)]
        return [re.sub("^ +", _unbroken, line) for line in drawn_lines]

    @cached_property
    def terminal(self) -> list[Text]:
        """Each line in the colours of the terminal's own palette."""
        from rich.syntax import Syntax

        drawn = Syntax("", "python", theme="ansi_dark").highlight("\n".join(self.lines))
        return list(drawn.split("\n", allow_blank=True))


def _unbroken(blanks: re.Match[str]) -> str:
    return "&nbsp;" * len(blanks[0])


@dataclass(frozen=True)
class CodeLine:
    """A line of a source."""

    source: SourceCode
    place: int
