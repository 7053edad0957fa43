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
from typing import Any, Literal, NamedTuple, NoReturn

from gpumagic.cells.semicolon import take_semicolon
from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import excess, variable_name
from gpumagic.system.text import did_you_mean

#: The form of a line without a verb; and that of a choice of GPUs.
PLAIN, SPEC = "", "SPEC"
#: What other programs show their help for.
_HELP = frozenset({"--help", "-h"})
#: The options of `Parser.add_baseline`.
BASELINE = ("--against", "--fail-above", "--save")
#: What argparse says of an option at the end of the line.
_WITHOUT_VALUE = re.compile(r"argument (\S+): expected (at least )?one argument")
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
#: What an option takes of the words that follow it.
_Takes = Literal["nothing", "one", "many"]


class Parser(argparse.ArgumentParser):
    """The options and arguments of a form, and their help; an error is a `SpecError` of one line.

    ``about`` is the help of a verb: what it does.
    """

    def __init__(self, name: str, about: str = "") -> None:
        super().__init__(prog=name, add_help=False, allow_abbrev=False)
        self.about = about
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
        """Return what adds options to a section of the help: ``add("-n N", "loops", count())``."""
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

    def add_targets(self) -> None:
        """Add ``--cluster`` and ``-t``, which every magic has."""
        add = self.section("cluster (needs ipyparallel)")
        add("--cluster", "on the engines, not in this process")
        add("-t, --targets ENGINES", "only these engines: 2, 0,3, 0:4")

    # --- reading ---------------------------------------------------------------------------------

    def read(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Return the options, and the words that are none of this form.

        Raises:
            SpecError: a value does not fit, or options do not go together.
        """
        options, rest = self.parse_known_intermixed_args(words)
        given = self.given(options)
        for option, partner in self._partners:
            if option in given and partner not in given:
                typed = f"{partner} … {option} …"
                if option in words and self._option_string_actions[partner].nargs == 0:
                    at = words.index(option)
                    typed = " ".join([*words[:at], partner, *words[at:]])
                raise SpecError(f"{option} goes with {partner}: {self.prog} {typed}")
        for option, others in self._apart:
            beside = ", ".join(each for each in others if each in given)
            if option in given and beside:
                raise SpecError(f"{option} does not go with {beside}: leave one of them out")
        return options, rest

    def given(self, options: argparse.Namespace) -> dict[str, Any]:
        """Return the options that differ from their defaults, by first name: ``{"-n": 5}``."""
        return {
            action.option_strings[0]: getattr(options, action.dest)
            for action in self._actions
            if action.option_strings and getattr(options, action.dest) != action.default
        }

    def option_strings(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]

    def error(self, message: str) -> NoReturn:
        if (bare := _WITHOUT_VALUE.fullmatch(message)) is not None:
            option = bare[1].split("/")[-1]
            action = next(each for each in self._actions if option in each.option_strings)
            message = f"{option} needs a value: {option} {action.metavar or action.dest.upper()}"
        stop = "" if message.endswith("?") else "."
        raise SpecError(f"{self.prog}: {message}{stop} Try {self.prog.split()[0]}?")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a word that is none of the ``choices``, without argparse's internal names."""
        if action.choices is not None and value not in action.choices:
            or_nothing = ", or nothing" if action.nargs == "?" else ""
            self.error(f"write {' or '.join(map(str, action.choices))}{or_nothing}, not {value!r}")


class MagicLine(NamedTuple):
    """The line of a magic, parsed."""

    text: str
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

    def __init__(self, magic: str, forms: Mapping[str, Parser], words: Sequence[str] = ()) -> None:
        self.magic = magic
        #: Choices of GPUs that are words.
        self._words = words
        #: By verb; `PLAIN` is a statement, or nothing, or with `SPEC` nothing.
        self.forms = forms
        self.verbs = [verb for verb in forms if verb not in (PLAIN, SPEC)]
        self._takes_code = SPEC not in forms
        actions = [action for form in forms.values() for action in form._actions]
        self._defaults = {action.dest: action.default for action in actions}
        self._options: dict[str, _Takes] = {
            option: "nothing" if action.nargs == 0 else "one" if action.nargs is None else "many"
            for action in actions
            for option in action.option_strings
        }
        # A form may be chosen by an option: --compare.
        self._options.update({verb: "nothing" for verb in self.verbs if verb.startswith("-")})

    def read(self, line: str, *, cell: bool = False, quiet: bool = False) -> MagicLine:
        """Parse a line; with a ``cell`` below it has no verb. ``quiet``: as if ``-q`` were given.

        Raises:
            SpecError: an option or argument does not fit.
        """
        words, rest, is_code = self._take_options(line.strip())
        if words and not rest and words[-1].endswith(";"):
            words[-1], rest = words[-1][:-1], ";"
        if rest.startswith("#"):
            rest = ""  # behind words `split` leaves it out; behind code it is Python's
        statement, silent = take_semicolon(rest)
        first = statement.split(None, 1)[0] if statement else ""
        after = statement[len(first) :].lstrip()
        first = "auto" if first.lower() == "auto" else first
        form = next((word for word in words if word in self.verbs), PLAIN)
        if cell and self._takes_code and (form or statement in self.verbs):
            form = form or statement
            raise SpecError(f"{form} is for a line: write {self.magic} {form}")
        if form != PLAIN:
            words = [*(word for word in words if word != form), *split(statement)]
            statement = ""
        elif not self._takes_code:
            form = first if first in self.verbs else SPEC if first or cell else PLAIN
            arguments = statement if form in (SPEC, "auto") else after
            words += split(arguments)
            statement = ""
        elif first in self.verbs and not (cell or is_code or _OPERATOR.match(after)):
            form = first
            words += split(after)
            statement = ""
        options, given = self._parse(form, words)
        options.quiet = options.quiet or quiet
        verb = form if form in self.verbs else ""
        code = rest if self._takes_code and not verb and statement else ""
        if silent and not code:
            options.quiet = True  # the ``;`` of code keeps its value alone from being shown
        return MagicLine(line, verb, options, given, code)

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

    def _parse(
        self, form: str, words: Sequence[str]
    ) -> tuple[argparse.Namespace, Mapping[str, Any]]:
        parser = self.forms[form]
        if not _HELP.isdisjoint(words) or (form == SPEC and words == ["help"]):
            raise SpecError(f"{self.magic}: the help is shown by {self.magic}?")
        options, rest = parser.read(words)
        if rest and rest[0].startswith("-"):
            self._refuse(rest[0], parser)
        if rest:
            parser.error(f"unexpected {rest[0]!r}")
        given = parser.given(options)
        return argparse.Namespace(**{**self._defaults, **vars(options)}), given

    def _refuse(self, word: str, parser: Parser) -> NoReturn:
        """Raise what is wrong with an option, and what it goes with or what is like it."""
        option = word.split("=", 1)[0] if word[1:2] == "-" else word[:2]

        names = {
            f"{self.magic} {verb or 'STATEMENT' * self._takes_code}".rstrip(): form
            for verb, form in self.forms.items()
        }
        has = [name for name, form in names.items() if option in form.option_strings()]
        if has:
            here = next(name for name, form in names.items() if form is parser)
            raise SpecError(f"{option} does not go with {here}; it goes with {', '.join(has)}")
        bare = option.lstrip("-")
        if bare in (*self.verbs, *self._words):
            raise SpecError(f"{bare} is written without dashes: {self.magic} {bare}")
        parser.error(f"unknown option {option}{did_you_mean(option, [*self._options])}")

    # --- words -----------------------------------------------------------------------------------

    def _take_options(self, text: str) -> tuple[list[str], str, bool]:
        """Return the options at the beginning of a text, the rest, and whether ``--`` ended them.

        A value is joined to its option: argparse takes one with a minus sign for an option.
        """
        words: list[str] = []
        while text.startswith("-") and not re.match(r"-\d", text):
            word, text = _take_word(text)
            if word == "--":
                return words, text, True
            takes = self.takes(word)
            if takes == "one" and text and self.takes(re.split(r"[\s;]", text)[0]) is None:
                value, text = _take_word(text)
                word += value if word[1:2] != "-" else f"={value}"
            words.append(word)
            while takes == "many" and text and not text.startswith("-"):
                value, text = _take_word(text)
                words.append(value)
        return words, text, False

    def takes(self, word: str) -> _Takes | None:
        """Return what an option takes of the words after it; None if the word is no option."""
        name, joined, _ = word.partition("=")
        if name in self._options:
            return "nothing" if joined else self._options[name]
        if word == "--":
            return "nothing"
        if not re.match(r"-[^-]", word):
            return None
        for place, letter in enumerate(word[1:], start=2):  # -qon 2, -n2
            takes = self._options.get(f"-{letter}")
            if takes != "nothing":
                return takes if place == len(word) or takes is None else "nothing"
        return "nothing"


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
