"""What gpumagic relies on of IPython's shell, from 7.34 to the newest: a test asks each for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Shell(Protocol):
    """The members of `IPython.core.interactiveshell.InteractiveShell` that are used.

    IPython gives most of them no type; what they are is said here.
    """

    #: The user's variables, and those that were there before the user's, with each output.
    user_ns: dict[str, Any]
    user_ns_hidden: dict[str, Any]
    user_global_ns: dict[str, Any]
    #: The number of the cell that runs, or of the next.
    execution_count: int
    #: What compiles cells, shows values and tracebacks, and keeps the history.
    compile: Any
    displayhook: Any
    display_pub: Any
    display_formatter: Any
    history_manager: Any
    InteractiveTB: Any
    Completer: Any
    #: What has been registered and loaded.
    magics_manager: Any
    extension_manager: Any
    payload_manager: Any
    configurables: list[Any]
    #: Hooks around cells, and what changes their source.
    events: Any
    input_transformers_post: list[Callable[[list[str]], list[str]]]
    #: Options.
    ast_node_interactivity: str
    autoawait: bool
    colors: str
    starting_dir: str
    last_execution_result: Any

    #: Only in a notebook process, and only in a terminal.
    kernel: Any
    mainloop: Callable[..., None]
    #: What it does; some of these are replaced for a while.
    transform_cell: Callable[[str], str]
    transform_ast: Callable[[Any], Any]
    run_cell: Callable[..., Any]
    run_code: Callable[..., Any]
    run_line_magic: Callable[..., Any]
    find_line_magic: Callable[[str], Any]
    register_magics: Callable[..., None]
    set_custom_exc: Callable[..., None]
    showtraceback: Callable[..., None]
