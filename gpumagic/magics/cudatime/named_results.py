"""``%%cudatime --name NAME`` and ``%cudatime --compare``: results kept, and shown side by side."""

from __future__ import annotations

import argparse
import difflib
import shlex
from collections.abc import Iterable
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.magics.output import hand_over
from gpumagic.magics.parsing import Parser, split
from gpumagic.results import Comparison, CudaTiming
from gpumagic.timing.comparison import compare


def add_options(parser: Parser) -> None:
    """``--name`` and ``--compare``."""
    group = parser.add_argument_group("comparing")
    group.add_argument(
        "--name", metavar="NAME", type=_name, help="keep the result under that name, to compare"
    )
    group.add_argument(
        "--compare",
        action="store_true",
        help="show the kept results side by side, the first as the baseline; names behind it "
        "(one with a blank in quotes) choose some, and which is the first",
    )


def _name(word: str) -> str:
    if not word or "," in word:
        raise argparse.ArgumentTypeError(f"{word!r} is not a name; it must not hold a comma")
    return word


def keep(magics: Any, name: str | None, result: CudaTiming) -> None:
    """Keep ``result`` for `show_kept`; under a name that is taken, in its place."""
    if name is not None:
        _kept(magics)[name] = result


def _kept(magics: Any) -> dict[str, CudaTiming]:
    if magics.kept_timings is None:
        magics.kept_timings = {}
    kept: dict[str, CudaTiming] = magics.kept_timings
    return kept


def show_kept(magics: Any, words: str, options: argparse.Namespace, *, silent: bool) -> Any:
    """Show the kept results, or those that ``words`` name, side by side.

    Raises:
        SpecError: nothing to compare, or a name under which nothing is kept.
    """
    kept = _kept(magics)
    names = _names(words) or list(kept)
    for name in names:
        if name not in kept:
            raise SpecError(f"%cudatime --compare: nothing is kept as {name!r}{_hint(name, kept)}")
    if len({*names}) < 2:
        raise SpecError(
            f"%cudatime --compare: it takes two results, and {_list(kept)} kept; "
            "%%cudatime --name NAME keeps one"
        )
    compared = compare({name: kept[name] for name in names})
    returned = hand_over(magics.shell, compared, options, silent=silent)
    if not (options.quiet or silent):
        _show_picture(magics.shell, compared)
    return returned


def _names(words: str) -> list[str]:
    """Names between commas, or else between blanks: those that hold one stand in quotes."""
    if "," not in words:
        return split(words)
    return [name for part in words.split(",") if (name := " ".join(split(part)))]


def _list(kept: dict[str, CudaTiming]) -> str:
    return f"only {_written(kept)} is" if kept else "none is"


def _hint(name: str, kept: dict[str, CudaTiming]) -> str:
    near = difflib.get_close_matches(name, kept, n=1)
    if near:
        return f"; did you mean {_written(near)}?"
    return f"; there {'are' if len(kept) != 1 else 'is'} {_written(kept) or 'none'}"


def _written(names: Iterable[str]) -> str:
    """Names as they may be typed."""
    return ", ".join(shlex.quote(name) for name in names)


def _show_picture(shell: Any, compared: Comparison) -> None:
    """The picture below the table, in a notebook that has matplotlib."""
    if not hasattr(shell, "kernel"):
        return
    from gpumagic.render import plots

    if plots.available():
        from IPython.display import display

        display(compared.plot())  # type: ignore[no-untyped-call]
    else:
        print("with matplotlib there would be a picture too: pip install matplotlib")
