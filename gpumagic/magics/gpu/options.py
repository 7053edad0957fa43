"""The forms of ``%gpu``: a verb, a choice of GPUs, or nothing."""

from __future__ import annotations

from functools import cache

from gpumagic.magics.argument_types import count, duration, size
from gpumagic.magics.parsing import PLAIN, SPEC, Grammar, Parser

#: The options of a choice that outlast one cell.
LASTING = ("--restart", "--keep", "--force", "--cluster")
#: Those that have no meaning for the engines of a cluster.
_ONLY_HERE = ("--restart", "--keep", "--force", "--soft", "--threads")


@cache
def grammar() -> Grammar:
    """Return the forms of ``%gpu``."""
    verbs = (PLAIN, "watch", "plot", "doctor")
    forms = {verb: Parser(f"%gpu {verb}".rstrip()) for verb in verbs}
    forms[PLAIN].add_argument("-p", dest="processes", action="store_true")
    forms["watch"].add_argument("state", nargs="?", choices=("off",))
    forms["watch"].add_argument("--every", type=duration(), metavar="SECONDS", default=1.0)
    forms["plot"].add_argument("file", nargs="?", metavar="FILE")
    forms.update({verb: _cluster(verb) for verb in ("cluster", "pin")})
    forms["restart"] = _restart()
    forms["auto"] = _auto()
    forms[SPEC] = _choice()
    return Grammar("%gpu", forms, ("off", "none", "cpu", "on", "all", "reset"))


def _choice() -> Parser:
    form = Parser("%gpu")
    form.add_argument("spec", nargs="*", metavar="SPEC", default=[])
    form.flags("--soft", "--restart", "--no-claim")
    form.add_argument("--threads", type=count(), metavar="N")
    _add_what_goes_on(form)
    form.needs("--restart", "--keep", "--force")
    form.apart("--soft", ("--restart",))
    form.add_targets()
    form.apart("--cluster", _ONLY_HERE)
    return form


def _restart() -> Parser:
    form = Parser("%gpu restart")
    _add_what_goes_on(form)
    return form


def _add_what_goes_on(form: Parser) -> None:
    form.flags("--force")
    form.add_argument("--keep", nargs="+", action="extend", metavar="NAME")


def _auto() -> Parser:
    form = _choice()
    form.add_argument("--min-free", type=size, metavar="SIZE")
    form.add_argument("--wait", type=duration(zero=True), metavar="SECONDS", default=0.0)
    form.flags("--idle")
    form.apart("--wait", ("--soft", "--cluster"))
    return form


def _cluster(verb: str) -> Parser:
    """Return the form of a verb for the engines of a cluster."""
    form = Parser(f"%gpu {verb}")
    form.flags("--cluster")
    form.add_argument("-t", "--targets", metavar="ENGINES")
    if verb == "cluster":
        form.add_argument("profile", nargs="?", metavar="PROFILE")
    else:
        form.flags("--no-claim")
    return form
