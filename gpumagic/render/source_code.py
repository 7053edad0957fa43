"""Lines of Python source in colours, by pygments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpumagic.render.blocks import Style, Styled
from gpumagic.system.text import harmless


def source_cells(lines: Sequence[str]) -> list[Styled]:
    """Return a cell for each line of a source, coloured as a part of the whole; tabs expanded."""
    lines = [harmless(line.expandtabs(4)) for line in lines]
    parts: list[list[tuple[str, Style]]] = [[]]
    for text, style in _parts("\n".join(lines)):
        first, *rest = text.split("\n")
        parts[-1].append((first, style))
        parts += [[(each, style)] for each in rest]
    return [Styled(line, "code", parts=of) for line, of in zip(lines, parts, strict=False)]


def _parts(source: str) -> Iterator[tuple[str, Style]]:
    """Yield the parts of a source, each in one style; a part may have several lines."""
    from pygments import lex
    from pygments.lexers.python import PythonLexer
    from pygments.token import Token

    styles: dict[object, Style] = {
        **dict.fromkeys((Token.Keyword, Token.Operator.Word), "keyword"),
        **dict.fromkeys((Token.Name.Function, Token.Name.Class, Token.Name.Builtin), "name"),
        Token.String: "string",
        Token.Number: "number",
        Token.Comment: "comment",
    }
    for kind, text in lex(source, PythonLexer(stripnl=False, ensurenl=False)):
        yield text, next((styles[each] for each in reversed(kind.split()) if each in styles), "")
