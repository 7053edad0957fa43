"""The ``;`` at the end of code, which keeps the value of its last expression from being shown."""

from __future__ import annotations

import io
import re
import tokenize

#: What may follow the ``;``.
_NO_CODE = ("COMMENT", "NEWLINE", "NL", "ENDMARKER")
#: A comment at the end of a text that is no Python.
_COMMENT = re.compile(r"(^|\s)#.*\Z")


def take_semicolon(source: str) -> tuple[str, bool]:
    """Return the code without the ``;`` at its end, and whether there was one.

    IPython's rule, also for an IPython that has no function for it (before 8): the last token
    counts, so that a ``;`` in a comment, a string or an indented block is none, and a comment may
    follow. Where the text is no Python, as a magic's line need not be, the last character before a
    comment counts.
    """
    try:
        tokens = [*tokenize.generate_tokens(io.StringIO(source).readline)]
    except (tokenize.TokenError, SyntaxError):
        text = _COMMENT.sub("", source.rstrip()).rstrip()
        return (text[:-1].rstrip(), True) if text.endswith(";") else (source, False)
    last = next(
        (token for token in reversed(tokens) if tokenize.tok_name[token.type] not in _NO_CODE), None
    )
    if last is None or last.string != ";":
        return source, False
    row, column = last.start
    lines = source.split("\n")[:row]
    lines[-1] = lines[-1][:column]
    return "\n".join(lines).rstrip(), True
