"""The help of a parser."""

from __future__ import annotations

import pytest

from gpumagic.magics.help import formatted
from gpumagic.magics.parsers import options_module
from gpumagic.magics.parsing import Parser, add_result_options

HELP = """\
usage: %magic [options] FILE

examples:
  %magic x

What it does.

positional arguments:
  FILE                  where to write it

options:
  -n N                  how often
  --a-long-name-of-an-option VALUE
                        a text that is long enough to be wrapped at the width
                        that is the same in every terminal: 100%
  --keep NAME [NAME ...]

result:
  -o                    return the result object
  -v NAME               store the result object in NAME
  -q                    print nothing
"""


def test_the_help_of_a_parser() -> None:
    parser = Parser(
        "%magic",
        usage="%(prog)s [options] FILE",
        description="What it does.\n",
        epilog="examples:\n  %magic x\n",
    )
    parser.add_argument("file", metavar="FILE", help="where to write it")
    options = parser.add_argument_group("options")
    options.add_argument("-n", metavar="N", help="how often")
    options.add_argument(
        "--a-long-name-of-an-option",
        metavar="VALUE",
        help="a text that is long enough to be wrapped at the width that is the same in every "
        "terminal: 100%%",
    )
    options.add_argument("--keep", nargs="+", metavar="NAME")
    options.add_argument("--secret", help="==SUPPRESS==")
    add_result_options(parser)
    assert formatted(parser) == parser.format_help() == HELP


def test_a_parser_without_options() -> None:
    assert formatted(Parser("%magic")) == "usage: %magic\n"


@pytest.mark.parametrize("name", ["gpu", "cudatime", "gpumem"])
def test_no_line_of_the_help_is_broken_in_a_terminal_of_eighty_columns(name: str) -> None:
    lines = formatted(options_module(name).parser()).splitlines()
    assert max(map(len, lines)) < 80


def test_explanations_and_paragraphs_are_wrapped_and_commands_are_not() -> None:
    words = " ".join(["word"] * 14)
    epilog = f"examples:\n  %magic      {words}\n              more\n  %magic one\n  %magic two\n"
    parser = Parser("%magic", epilog=epilog, description=f"{words}\n{words}\n\nLast.\n")
    assert formatted(parser) == (
        "usage: %magic\n\nexamples:\n"
        f"  %magic      {' '.join(['word'] * 13)}\n"
        "              word more\n"
        "  %magic one\n  %magic two\n\n"
        f"{' '.join(['word'] * 16)}\n{' '.join(['word'] * 12)}\n\nLast.\n"
    )
