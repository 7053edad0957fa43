"""The line of a magic: options, and then a verb with its arguments or a statement.

The variables that a line names, ``{x}`` and ``$x``, are put in here and nowhere else: into each
option and argument, never into the statement behind them.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

from gpumagic.cells.semicolon import take_semicolon
from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import expanded
from gpumagic.magics.option_forms import HELP, PLAIN, SPEC, Form, Options, help_page
from gpumagic.wording import did_you_mean

#: A word in quotes, perhaps joined to its option; within other words quotes are themselves, since
#: they are code: -s x='a'. A backslash is one, since paths of Windows have them.
_QUOTED = re.compile(r"""(--?[\w-]+=?)?(?:'([^']*)'|"([^"]*)")(?=[\s;,]|$)""")
_OPEN = re.compile(r"""(--?[\w-]+=?)?['"]""")
#: Another word, with the blanks of an expression in braces: ``bs-{a + b}``.
_WORD = re.compile(r"(?:\{[^{}]*\}|\S)+")
#: What follows a name only in a statement: ``log = 3``, ``log [0]``, ``log - 1``,
#: ``log if x else y``. Not ``-o``, an option, nor ``/tmp/file``, a path.
_OPERATOR = re.compile(
    r"[=(\[,:+*%@<>|&^!;]|[-/.](\s|=|$)|//|->|-[\d.]+(\s|$)|(if|else|and|or|in|is|not\s+in|for)(\s|$)"
)
#: A verb that was mistyped, with its arguments; no statement of Python's, but perhaps a magic.
_LIKE_A_VERB = re.compile(r"([A-Za-z_]\w*)(\s+[\w.]+)*\s*;?")
#: A number before a name, which no statement of Python's has: --repeat 5 f(x).
_LIKE_A_VALUE = re.compile(r"(\d[\w.%]*)\s+([^\W\d]\w*)")


class MagicLine(NamedTuple):
    """The line of a magic, parsed."""

    #: The first word if it is a verb, or `HELP`; else empty.
    verb: str
    #: The options of the form, an object of its dataclass.
    options: Options
    #: Those that were given: ``{"-n": 5}``.
    given: Mapping[str, Any]
    #: The statement as it is written.
    code: str
    #: The whole line as it is written.
    written: str


class Grammar:
    """The forms of a magic's line.

    ``words`` are choices of GPUs, and ``beside`` is what may stand on a cell magic's line.
    """

    def __init__(
        self, magic: str, *forms: Form, words: Sequence[str] = (), beside: str = ""
    ) -> None:
        self.magic, self.words, self._beside = magic, words, beside
        #: By verb; `PLAIN` is a statement, or nothing, or with `SPEC` nothing.
        self.forms = {form.name: form for form in forms}
        self.verbs = [verb for verb in self.forms if verb not in (PLAIN, SPEC)]
        self._takes_code = SPEC not in self.forms
        #: Whether an option takes a value.
        self._options = {name: takes for form in forms for name, takes in form.takes.items()}

    def help_page(self, text: str) -> str:
        """Return the magic's help, of which ``text`` is the beginning and the examples."""
        return help_page(text, self.forms.values())

    def read(
        self,
        line: str,
        variables: Mapping[str, Any] | None = None,
        *,
        cell: bool = False,
        quiet: bool = False,
    ) -> MagicLine:
        """Parse a line; with a ``cell`` below it has no verb. ``quiet``: as if ``-q`` were given.

        ``variables`` are those that the words of the line may name, all but its statement; they
        are also the names by which a mistyped verb is known.

        Raises:
            SpecError: an option or argument does not fit.
        """
        known = variables or {}
        words, rest, is_code = self.take_options(line.strip())
        if rest.startswith("#"):
            rest = ""  # behind words `split` leaves it out; behind code it is Python's
        if words and not rest and words[-1].endswith(";"):
            words[-1], rest = words[-1][:-1], ";"
        statement, silent = take_semicolon(rest)
        name, arguments = self._form(statement, known, cell=cell, is_code=is_code)
        code = rest if statement and name == PLAIN and self._takes_code else ""
        asks = statement == HELP and HELP not in known
        if not code:
            words += split(arguments)
        if asks or {"--help", "-h"} & {*words}:
            return MagicLine(HELP, Options(), {}, "", line)
        form = self.forms[name]
        self._check_spelling(words, form)
        options, given, more = form.read([expanded(word, known) for word in words])
        if more and more[0].startswith("-"):
            self._refuse(more[0], form, rest)
        if more:
            form.error(f"unexpected {more[0]!r}")
        if cell and code:
            raise SpecError(
                f"%{self.magic}: {code!r} belongs below, in the cell; {self._beside}; a value with "
                "blanks is in quotes"
            )
        if code and variables is not None and "--cluster" not in given:
            self._check_statement(code, variables)
        # The ``;`` of code keeps its value alone from being shown.
        options = replace(options, quiet=options.quiet or quiet or (silent and not code))
        return MagicLine(name if name in self.verbs else "", options, given, code, line)

    def _form(
        self, statement: str, known: Mapping[str, Any], *, cell: bool, is_code: bool
    ) -> tuple[str, str]:
        """Return the form of what stands behind the options, and its arguments."""
        if not self._takes_code and statement:  # a variable may hold several words: auto 2
            opening, after = _take_word(statement)
            statement = f"{expanded(opening, known)} {after}"
        first, *behind = statement.split(None, 1) or [""]
        after, is_verb = "".join(behind), first in self.verbs
        if self._takes_code:
            if cell and is_verb and not after:
                raise SpecError(f"{first} is for a line: write {self.magic} {first}")
            is_code = is_code or cell or not is_verb or _is_code(first, after, known)
            return (PLAIN, statement) if is_code else (first, after)
        if first.lower() == "auto":
            return "auto", f"auto {after}"
        return (first, after) if is_verb else (SPEC if first or cell else PLAIN, statement)

    def _check_statement(self, code: str, known: Container[str]) -> None:
        """Refuse a mistyped option or verb: of IPython's ``reset`` it would be a magic.

        ``known`` has the names that code may use, beside Python's own.

        Raises:
            SpecError: the code is words, of which the first is no name and no keyword.
        """
        value = _LIKE_A_VALUE.match(code)
        if value is not None and not keyword.iskeyword(value[2]):
            what = f"{value[1]!r} has no option before it; {self._beside}"
            raise SpecError(f"{self.magic}: {what}")
        match = _LIKE_A_VERB.fullmatch(code)
        if match is None or keyword.iskeyword(match[1]):
            return
        word = match[1]
        if word in known or word in vars(builtins):
            return
        if word in self.verbs:  # behind ``--``
            raise SpecError(f"{word!r} is no variable; the verb is {self.magic} {code}")
        near = did_you_mean(word, self.verbs) or f"; the verbs are {', '.join(self.verbs)}"
        raise SpecError(f"{self.magic}: {word!r} is neither a verb nor a variable{near}")

    def _check_spelling(self, words: Sequence[str], form: Form) -> None:
        """Refuse a long option with one dash; not ``-on 2``, which is ``-o -n 2``."""
        for word in words:
            name, _, _ = word.partition("=")
            if name[:1] == "-" and f"-{name}" in self._options and not self.takes(name):
                form.error(f"unknown option {name}; did you mean -{name}?")

    def _refuse(self, word: str, form: Form, rest: str) -> NoReturn:
        """Raise what is wrong with an option, and what it goes with or what is like it."""
        option, _, value = word.partition("=")
        if has := [each.written for each in self.forms.values() if option in each.takes]:
            others = ", ".join(has)
            raise SpecError(f"{option} does not go with {form.written}; it goes with {others}")
        bare = option.lstrip("-")
        if bare in (*self.verbs, *self.words):
            typed = f"{self.magic} {bare} {value}".rstrip()
            raise SpecError(f"{bare} is written without dashes: {typed}")
        near = did_you_mean(option, [*self._options])
        if option[1:] in self._options:
            near = f"; did you mean {option[1:]}?"
        if self._takes_code and form.name == PLAIN and not word.startswith("--"):
            near = f"; code that begins with a minus sign follows --: {self.magic} -- {word} {rest}"
        form.error(f"unknown option {option}{near.rstrip()}")

    # --- words -----------------------------------------------------------------------------------

    def take_options(self, text: str) -> tuple[list[str], str, bool]:
        """Return the options at the beginning of a text, the rest, and whether ``--`` ended them.

        A value is joined to its option: argparse takes one with a minus sign for an option.
        """
        words: list[str] = []
        while text.startswith("-") and not re.match(r"-\d", text):
            word, text = _take_word(text)
            if word == "--":
                return words, text, True
            is_option = self.takes(re.split(r"[\s;]", text)[0]) is not None
            if self.takes(word) and text and not is_option:
                value, text = _take_word(text)
                while value.endswith(",") and text:  # a list: cpu, cuda:0
                    more, text = _take_word(text)
                    value += more
                word += value if word[1:2] != "-" else f"={value}"
            words.append(word)
        return words, text, False

    def takes(self, word: str) -> bool | None:
        """Return whether an option takes the word after it; None if the word is no option."""
        name, joined, _ = word.partition("=")
        if name in self._options:
            return self._options[name] and not joined
        if word == "--":
            return False
        if not re.match(r"-[^-]", word):
            return None
        for place, letter in enumerate(word[1:], start=2):  # -qon 2, -n2
            takes = self._options.get(f"-{letter}")
            if takes is not False:
                return takes and place == len(word)
        return False


def _is_code(first: str, after: str, known: Container[str]) -> bool:
    """Return whether a line that begins with a verb is a statement: ``log = 3``."""
    # ``limit -5`` is one if there is such a variable.
    return _OPERATOR.match(after) is not None and (first in known or not after.startswith("-"))


def _take_word(text: str) -> tuple[str, str]:
    """Return the first word of a text, without its quotes, and the rest."""
    quoted = _QUOTED.match(text)
    if quoted is not None:
        word = "".join(part or "" for part in quoted.groups())
        return word, text[quoted.end() :].lstrip()
    if _OPEN.match(text):
        raise SpecError(f"no closing quotation, or no blank behind it, in {text!r}")
    end = 0 if (match := _WORD.match(text)) is None else match.end()
    return text[:end], text[end:].lstrip()


def split(text: str) -> list[str]:
    """Return the words of a text; one with blanks is in quotes.

    Raises:
        SpecError: a quotation is not closed.
    """
    words = []
    text = text.strip()
    while text and not text.startswith("#"):  # a comment
        word, text = _take_word(text)
        words.append(word)
    return words
