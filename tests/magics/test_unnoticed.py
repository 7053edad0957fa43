"""Loading changes nothing that a user can see: the same cells, with the extension and without."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.support.kernels import Kernel
from tests.virtual_gpu import Scenario

VARIABLE = "PYTORCH_NVML_BASED_CUDA_CHECK"

CELLS = (
    "import no_such_package",
    "import failing",
    "from os import no_such_name",
    "import json.no_such_module",
    "import broken_syntax",
    "import warns",
    "import importlib; importlib.reload(warns)",
    "importlib.import_module('failing')",
    "__import__('no_such_package')",
    "def (:",
    "return 3",
    "1 +",
    "1 / 0",
    "def f(x):\n    return 1 / x\nf(0)",
    "%xmode Verbose\nf(0)",
    "%xmode Minimal\nf(0)",
    "%xmode Context\nimport failing",
    "%run script.py",
    "%run -i script.py",
    "%%bash\necho from bash; exit 3",
    "%%capture said\nprint('captured')",
    "said.stdout",
    "import asyncio\nawait asyncio.sleep(0, 'awaited')",
    "async def g():\n    raise ValueError('awaited')\nawait g()",
    "'a value'",
    "Out, _, __, _25, In[-2]",
    "%who",
    "import inspect\n[(frame.filename, frame.function) for frame in inspect.stack()]",
    "import traceback\ntraceback.print_stack()",
    "def down(n):\n    try:\n        return down(n + 1)\n    except RecursionError:\n"
    "        return n\ndown(0)",
    "import sys\n[getattr(finder, '__name__', type(finder)) for finder in sys.meta_path], "
    "[type(hook) for hook in sys.path_hooks]",
    "import builtins\n{name: repr(value) for name, value in vars(builtins).items() if name != '_'}",
    "import signal\n[signal.getsignal(number) for number in signal.valid_signals()]",
    "import threading\nsorted(thread.name for thread in threading.enumerate())",
    "import os\n{n for n in {*os.environ, *before} if os.environ.get(n) != before.get(n)} "
    "- {VARIABLE}",
    "sys.gettrace(), sys.getprofile(), sys.excepthook, sys.displayhook, sys.unraisablehook",
    "warnings.filters",
    "get_ipython().ast_transformers, get_ipython().custom_exceptions, get_ipython().run_cell",
    "import gc\n(gc.isenabled(), gc.get_threshold(), gc.callbacks)",
    "class Shown:\n    def _repr_html_(self):\n        return '<b>bold</b>'\nShown()",
    "%time import failing",
    "get_ipython().run_cell('import failing')\nprint('goes on')",
    "print(*sorted(n for n in dir() if 'gpu' in n.lower()))",
    "raise SystemExit(3)",
)
#: What differs from one process to the next.
UNLIKE = re.compile(
    r"0x[0-9a-f]+|ipykernel_\d+/\d+|ipykernel_\d+|Thread-\d+|(CPU times|Wall time).*"
)


def outputs(kernel: Kernel, first: str) -> list[str]:
    """Return what each of `CELLS` shows, after ``first``, in a form equal in all processes."""
    kernel.run(f"import os, warnings; before = dict(os.environ); VARIABLE = {VARIABLE!r}")
    kernel.run(first)
    shown = []
    for cell in CELLS:
        reply = kernel.run(cell, raising=False)
        # In any number of messages, which depends on time.
        streams = (reply.stdout, reply.stderr, reply.shown)
        others = [each for each in reply.outputs if each["output_type"] != "stream"]
        parts = (cell, reply.status, reply.execution_count, streams, others)
        shown.append(UNLIKE.sub("…", "\n".join(map(str, parts))))
    return shown


def test_nothing_but_our_own_lines_differs(kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    """Also with lines after cells switched on; here no cell has such a line."""
    (tmp_path / "failing.py").write_text("import json\nimport no_such_package\n")
    (tmp_path / "broken_syntax.py").write_text("def (:\n")
    (tmp_path / "warns.py").write_text(
        "import warnings\nwarnings.warn('of the importer', stacklevel=2)\nwarnings.warn('mine')\n"
    )
    (tmp_path / "script.py").write_text("import sys\nprint(sys.argv, __name__)\nimport failing\n")
    plain = outputs(kernel(load=False), "None")
    loaded = outputs(kernel(load=False), "%load_ext gpumagic")
    assert loaded == plain
    on = "%load_ext gpumagic\n%cudatime on -q --above 3600s\n%gpumem on -q"
    assert outputs(kernel(load=False), on) == plain


def test_no_warning_of_torchs_where_nvml_cannot_be_initialised(
    kernel: Callable[..., Kernel],
) -> None:
    """torch calls NVML because of gpumagic, and would warn of its error because of that."""
    not_loaded = {"/proc/driver/nvidia/version": None}
    fresh = kernel(Scenario(devices=0, faults={"nvmlInit*": 9, "cuInit": 100}, files=not_loaded))
    assert fresh.run("import torch\ntorch.cuda.is_available()").stderr == ""
    assert fresh.value(f"__import__('os').environ.get({VARIABLE!r})") is None
