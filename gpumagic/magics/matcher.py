"""The extension's matcher for IPython's completer; what completes is imported when it is needed."""

from __future__ import annotations

from typing import Any


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
        from gpumagic.magics.completion import Session, complete, known_devices

        try:
            session = Session(shell.user_ns, tuple(timings()), known_devices())
            first = not any(context.full_text.split("\n")[: context.cursor_line])
            found = complete(context.text_until_cursor, session, first=first)
        except Exception:  # IPython's own completions must go on
            return nothing
        if found is None:
            return nothing
        return {
            "completions": [SimpleCompletion(each.text, type=each.kind) for each in found.items],
            "matched_fragment": found.fragment,
            "suppress": found.only,
        }

    return match
