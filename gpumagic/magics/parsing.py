"""The line of a magic: options, and then a verb with its arguments or a statement.

Each verb is a form of the line with a parser of its own, so that options which do not go together
are refused by the parser. A magic's forms need no IPython and nothing that measures: completion
reads them at a key press.
"""

from __future__ import annotations

import argparse
import builtins
import keyword
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

from gpumagic.cells.semicolon import take_semicolon
from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import excess, limit, variable_name
from gpumagic.system.text import did_you_mean

#: The form of a line without a verb; and that of a choice of GPUs.
PLAIN, SPEC = "", "SPEC"
#: The options of every form, and those of `Parser.add_baseline`.
RESULT = ("-o", "-v", "-q")
BASELINE = ("--against", "--fail-above", "--save")
#: A word in quotes, perhaps joined to its option; within other words quotes are themselves, since
#: they are code: -s x='a'. A backslash is one, since paths of Windows have them.
_QUOTED = re.compile(r"""(--?[\w-]+=?)?(?:'([^']*)'|"([^"]*)")(?=[\s;,]|$)""")
_OPEN = re.compile(r"""(--?[\w-]+=?)?['"]""")
#: What follows a name only in a statement: ``log = 3``, ``log [0]``, ``log - 1``,
#: ``log if x else y``. Not ``-o``, an option, nor ``/tmp/file``, a path.
_OPERATOR = re.compile(
    r"[=(\[,:+*%@<>|&^!;]|[-/.](\s|=|$)|//|->|-[\d.]+(\s|$)|(if|else|and|or|in|is|not\s+in|for)(\s|$)"
)
#: A verb that was mistyped, with its arguments; no statement of Python's, but perhaps a magic.
_LIKE_A_VERB = re.compile(r"([A-Za-z_]\w*)(\s+[\w.]+)*\s*;?")


class Parser(argparse.ArgumentParser):
    """The options and arguments of a form, and their help; an error is a `SpecError` of one line.

    ``written`` is the form as it is written: ``%gpu SPEC``, or a verb with its argument, as
    ``%gpumem limit [SIZE|PERCENT|off]``. ``about`` is the help of a verb: what it does.
    """

    def __init__(self, written: str, about: str = "") -> None:
        words = written.split()
        super().__init__(prog=" ".join(words[:2]), add_help=False, allow_abbrev=False)
        self.written, self.about = written, about
        self.form = PLAIN if words[1:] in ([], ["STATEMENT"]) else words[1]
        for argument in words[2:]:
            self._add_argument_as_written(argument)
        #: By title of the help: the options as they are written, and what they do.
        self.sections: dict[str, dict[str, str]] = {}
        # A word that begins with a number is no option: -1,0 has a message of its own.
        self._negative_number_matcher = re.compile(r"-\d\S*$")
        self._partners: list[tuple[str, str]] = []
        self._apart: list[tuple[str, Collection[str]]] = []
        add = self.section("result")
        add("-o", "return the result object", dest="output")
        add("-v NAME", "store it in NAME", variable_name, dest="variable")
        add("-q", "print nothing, as does a ; that ends no code", dest="quiet")

    def section(self, title: str) -> Callable[..., None]:
        """Return what adds options to a section of the help: ``add("-n N", "loops", count)``."""
        return partial(self._add_option, self.sections.setdefault(title, {}))

    def _add_option(
        self,
        section: dict[str, str],
        written: str,
        about: str,
        value: Callable[[str], Any] = str,
        **more: Any,
    ) -> None:
        """Add an option as it is written: ``-q``, or ``-t, --targets ENGINES`` with a value."""
        section[written] = about
        *names, last = written.replace(",", " ").split()
        if last.startswith("-"):
            self.add_argument(*names, last, action="store_true", **more)
        else:
            self.add_argument(*names, metavar=last, type=value, **more)

    def needs(self, partner: str, *options: str) -> None:
        """Refuse these options without their ``partner``."""
        self._partners += [(option, partner) for option in options]

    def apart(self, option: str, others: Iterable[str]) -> None:
        """Refuse an option beside any of the others."""
        self._apart.append((option, tuple(others)))

    def _add_argument_as_written(self, written: str) -> None:
        """Add an argument: ``FILE``, ``[FILE]``, ``[NAMES]``, ``[on|off]``."""
        name = written.strip("[]")
        words = name.split("|")
        optional = "*" if name == "NAMES" else "?"
        self.add_argument(
            "switch" if name.islower() else words[0].lower(),
            nargs=optional if name != written else None,
            choices=words if name.islower() else None,
            metavar=name,
            type=limit if name == "SIZE|PERCENT|off" else str,
        )

    # --- options of several magics ---------------------------------------------------------------

    def add_baseline(self) -> None:
        """Add ``--save``, ``--against`` and ``--fail-above``."""
        add = self.section("comparing")
        add("--save FILE", "write the result to FILE, as JSON")
        add("--against FILE", "compare with the result in FILE")
        add("--fail-above PERCENT", "and fail if it is so much higher, e.g. 10%", excess)
        self.needs("--against", "--fail-above")

    def add_lines(self, about: str) -> None:
        """Add ``--lines`` and ``-f``."""
        add = self.section("line by line")
        add("--lines", about)
        more = "with --lines: this function's lines, too"
        add("-f FUNC", more, dest="functions", action="append", default=[])
        self.needs("--lines", "-f")

    def add_targets(self, only_here: Collection[str] = ()) -> None:
        """Add ``--cluster`` and ``-t``; ``only_here`` has no meaning for the engines."""
        add = self.section("cluster (needs ipyparallel)")
        add("--cluster", "on the engines, not in this process")
        add("-t, --targets ENGINES", "only these engines: 2, 0,3, 0:4")
        if only_here:
            self.needs("--cluster", "-t")
            self.apart("--cluster", only_here)

    # --- reading ---------------------------------------------------------------------------------

    def read(self, words: Sequence[str]) -> tuple[argparse.Namespace, Mapping[str, Any], list[str]]:
        """Return the options, those that were given, and the words that are none of this form.

        Raises:
            SpecError: a value does not fit, or options do not go together.
        """
        options, rest = self.parse_known_intermixed_args(words)
        given = {
            action.option_strings[0]: getattr(options, action.dest)
            for action in self._actions
            if action.option_strings and getattr(options, action.dest) != action.default
        }
        for option, partner in self._partners:
            if option in given and partner not in given:
                typed = f"{self.prog.split()[0]} {partner} … {option} …"
                raise SpecError(f"{option} goes with {partner}: {typed}")
        for option, others in self._apart:
            beside = ", ".join(each for each in others if each in given)
            if option in given and beside:
                raise SpecError(f"{option} does not go with {beside}: leave one of them out")
        return options, given, rest

    def option_strings(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]

    def error(self, message: str) -> NoReturn:
        stop = "" if message.endswith("?") else "."
        raise SpecError(f"{self.prog}: {message}{stop} Try {self.prog.split()[0]}?")


class MagicLine(NamedTuple):
    """The line of a magic, parsed."""

    #: The first word if it is a verb; else empty.
    verb: str
    #: The options of the form, and the defaults of those of other forms.
    options: argparse.Namespace
    #: The options that differ from their defaults, by name: ``{"-n": 5}``.
    given: Mapping[str, Any]
    #: The statement as it is written.
    code: str


class Grammar:
    """The forms of a magic's line."""

    def __init__(self, magic: str, *forms: Parser, words: Sequence[str] = ()) -> None:
        self.magic = magic
        #: Choices of GPUs that are words.
        self.words = words
        #: By verb; `PLAIN` is a statement, or nothing, or with `SPEC` nothing.
        self.forms = {form.form: form for form in forms}
        self.verbs = [verb for verb in self.forms if verb not in (PLAIN, SPEC)]
        self._takes_code = SPEC not in self.forms
        actions = [action for form in forms for action in form._actions]
        self._defaults = {action.dest: action.default for action in actions}
        #: Whether an option takes a value. A form may be chosen by one that takes none: --compare.
        self._options = {verb: False for verb in self.verbs if verb.startswith("-")}
        for action in actions:
            self._options.update(dict.fromkeys(action.option_strings, action.nargs != 0))

    def read(self, line: str, *, cell: bool = False, quiet: bool = False) -> MagicLine:
        """Parse a line; with a ``cell`` below it has no verb. ``quiet``: as if ``-q`` were given.

        Raises:
            SpecError: an option or argument does not fit.
        """
        words, rest, is_code = self.take_options(line.strip())
        if words and not rest and words[-1].endswith(";"):
            words[-1], rest = words[-1][:-1], ";"
        if rest.startswith("#"):
            rest = ""  # behind words `split` leaves it out; behind code it is Python's
        statement, silent = take_semicolon(rest)
        first, *behind = statement.split(None, 1) or [""]
        after = "".join(behind)
        first = "auto" if first.lower() == "auto" else first
        form = next((word for word in words if word in self.verbs), PLAIN)
        if cell and self._takes_code and (form or statement in self.verbs):
            form = form or statement
            raise SpecError(f"{form} is for a line: write {self.magic} {form}")
        if form != PLAIN:
            words.remove(form)
        elif not self._takes_code:
            form = first if first in self.verbs else SPEC if first or cell else PLAIN
        elif first in self.verbs and not (cell or is_code or _OPERATOR.match(after)):
            form = first
        code = rest if statement and form == PLAIN and self._takes_code else ""
        if not code:
            words += split(after if form == first != "auto" else statement)
        parser = self.forms[form]
        if "--help" in words or "-h" in words or (form == SPEC and words == ["help"]):
            raise SpecError(f"{self.magic}: the help is shown by {self.magic}?")
        options, given, more = parser.read(words)
        if more and more[0].startswith("-"):
            self._refuse(more[0], parser)
        if more:
            parser.error(f"unexpected {more[0]!r}")
        options = argparse.Namespace(**{**self._defaults, **vars(options)})
        # The ``;`` of code keeps its value alone from being shown.
        options.quiet = options.quiet or quiet or (silent and not code)
        return MagicLine(form if form in self.verbs else "", options, given, code)

    def check_statement(self, code: str, *scopes: Container[str]) -> None:
        """Refuse a mistyped verb: of IPython's ``reset`` and ``clear`` it would be a magic.

        ``scopes`` have the names that code may use, beside Python's own.

        Raises:
            SpecError: the code is words, of which the first is no name and no keyword.
        """
        match = _LIKE_A_VERB.fullmatch(code)
        if match is None or keyword.iskeyword(match[1]):
            return
        if any(match[1] in scope for scope in (*scopes, vars(builtins))):
            return
        if match[1] in self.verbs:  # behind ``--``
            raise SpecError(f"{match[1]!r} is no variable; the verb is {self.magic} {code}")
        near = did_you_mean(match[1], [verb for verb in self.verbs if verb.isalpha()])
        raise SpecError(
            f"{self.magic}: {match[1]!r} is neither a verb nor a variable{near}; {self.magic}? "
            "shows the verbs"
        )

    def _refuse(self, word: str, parser: Parser) -> NoReturn:
        """Raise what is wrong with an option, and what it goes with or what is like it."""
        option = word.split("=", 1)[0] if word[1:2] == "-" else word[:2]
        has = [form.prog for form in self.forms.values() if option in form.option_strings()]
        if has:
            others = ", ".join(has)
            raise SpecError(f"{option} does not go with {parser.prog}; it goes with {others}")
        bare = option.lstrip("-")
        if bare in (*self.verbs, *self.words):
            raise SpecError(f"{bare} is written without dashes: {self.magic} {bare}")
        parser.error(f"unknown option {option}{did_you_mean(option, [*self._options])}")

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


def _take_word(text: str) -> tuple[str, str]:
    """Return the first word of a text, without its quotes, and the rest."""
    quoted = _QUOTED.match(text)
    if quoted is not None:
        word = "".join(part or "" for part in quoted.groups())
        return word, text[quoted.end() :].lstrip()
    if _OPEN.match(text):
        raise SpecError(f"no closing quotation, or no blank behind it, in {text!r}")
    word, *rest = text.split(None, 1)
    return word, rest[0] if rest else ""


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
