"""The extension's matcher for IPython's completer; what completes is imported when it is needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


class _NothingElse:
    """No completions, with a length of 1: IPython ignores ``suppress`` beside an empty list."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def _attributes(completer: Any, context: Any, expression: str) -> Iterable[str]:
    """Return the attributes in a line with a magic where IPython finds none by itself.

    Jedi finds them in each line; without it, IPython 8 does, and IPython 9 does not.
    """
    if completer.use_jedi:
        return ()
    own = getattr(completer, "python_matcher", None)
    if own is not None and any(True for _ in own(context)["completions"]):
        return ()
    found: Iterable[str] = completer.attr_matches(expression)
    return found


def matcher(shell: Any, timings: Any) -> Any:
    """Return a matcher for IPython's completer; ``timings()`` returns the names of timings.

    None where this IPython has no matchers of this kind (before 8.6).
    """
    try:
        from IPython.core.completer import SimpleCompletion, context_matcher
    except ImportError:
        return None

    @context_matcher(identifier="gpumagic")  # type: ignore[untyped-decorator]
    def match(context: Any) -> Any:
        nothing = {"completions": [], "suppress": False}
        if "%" not in context.text_until_cursor:
            return nothing
        from gpumagic.magics.completion import complete, known_devices
        from gpumagic.magics.session_names import Session

        try:
            completer = shell.Completer
            session = Session(
                shell.user_ns,
                tuple(timings()),
                known_devices(),
                completer.global_matches,
                lambda expression: _attributes(completer, context, expression),
                has_panel=hasattr(shell, "kernel"),
            )
            first = not any(context.full_text.split("\n")[: context.cursor_line])
            found = complete(context.text_until_cursor, session, first=first)
        except Exception:  # IPython's own completions must go on
            return nothing
        if found is None:
            return nothing
        items = [SimpleCompletion(each.text, type=each.kind) for each in found.items]
        return {
            "completions": items or (_NothingElse() if found.only else []),
            "matched_fragment": found.fragment,
            "suppress": found.only,
            "ordered": True,  # before what others offer, and verbs before names
        }

    return match
