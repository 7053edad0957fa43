"""The help of a parser."""

from __future__ import annotations

from gpumagic.magics.help import formatted
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
                        a text that is long enough to be wrapped at the width that is
                        the same in every terminal: 100%
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
