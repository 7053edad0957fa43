"""Python source with its parts coloured, by pygments; imported where source is drawn in colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["", "keyword", "string", "number", "comment", "name"]
#: In a terminal, whose own palette these are of.
TERMINAL: Mapping[Kind, str] = {
    "": "",
    "keyword": "magenta",
    "string": "green",
    "number": "yellow",
    "comment": "dim",
    "name": "cyan",
}
#: Longer sources are drawn without colours: pygments takes a second for 500,000 characters.
_LONGEST = 200_000


class Part(NamedTuple):
    """A part of a line."""

    text: str
    kind: Kind


@dataclass
class SourceCode:
    """Lines of source, tabs expanded; each is coloured as a part of the whole."""

    lines: Sequence[str]
    _parts: list[list[Part]] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.lines = [line.expandtabs(4) for line in self.lines]

    def parts(self, place: int) -> list[Part]:
        """Return the parts of a line."""
        if self._parts is None:
            self._parts = _parts(self.lines)
        return self._parts[place]


@dataclass(frozen=True)
class CodeLine:
    """A line of a source."""

    source: SourceCode
    place: int

    @property
    def parts(self) -> list[Part]:
        return self.source.parts(self.place)


def _parts(lines: Sequence[str]) -> list[list[Part]]:
    """Return the parts of each line; whole lines where pygments counts others than we do."""
    whole = [[Part(line, "")] for line in lines]
    text = "\n".join(lines)
    if len(text) > _LONGEST:
        return whole
    from pygments.lexers.python import PythonLexer

    found: list[list[Part]] = [[]]
    for token, value in PythonLexer(stripnl=False, ensurenl=False).get_tokens(text):
        first, *more = value.split("\n")
        for place, part in enumerate((first, *more)):
            if place:
                found.append([])
            if part:
                kind = _kind(str(token))
                line = found[-1]
                # No part is whitespace only: nbconvert's HTML (BeautifulSoup) reduces such a text
                # to one blank, and with it the indentation.
                if line and (line[-1].kind == kind or line[-1].text.isspace()):
                    part = line.pop().text + part
                elif line and part.isspace():
                    kind, part = line[-1].kind, line.pop().text + part
                line.append(Part(part, kind))
    texts = ["".join(part.text for part in line) for line in found]
    return found if texts == [*lines] else whole


_KINDS: Mapping[str, Kind] = {
    "Token.Keyword": "keyword",
    "Token.Operator.Word": "keyword",
    "Token.Literal.String": "string",
    "Token.Literal.Number": "number",
    "Token.Comment": "comment",
    "Token.Name.Function": "name",
    "Token.Name.Class": "name",
    "Token.Name.Decorator": "name",
    "Token.Name.Builtin": "name",
}


def _kind(token: str) -> Kind:
    return next((kind for start, kind in _KINDS.items() if token.startswith(start)), "")
