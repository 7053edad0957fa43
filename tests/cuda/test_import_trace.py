"""Imports are traced in this Python's own import system, which is restored afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: Needs nothing but the standard library, so that any Python can run it: `PYTHON FILE FOLDER`.
SCRIPT = """
import builtins, importlib._bootstrap, sys, threading
from gpumagic.cuda.import_trace import ImportTrace

kept = importlib._bootstrap._module_locks
before = builtins.__import__, list(sys.meta_path), list(sys.path_hooks)
noted = []
trace = ImportTrace(lambda: noted.append("+"), noted.append)
trace.attach()
assert trace.attached, "this Python keeps no locks of its imports where they are looked for"

def after(*expected):
    assert noted == list(expected), (noted, expected)
    noted.clear()

def forget():
    for name in [name for name in sys.modules if name.startswith("noted_")]:
        del sys.modules[name]

import noted_outer
after("+", "+", "noted_inner", "noted_outer")
import noted_outer, noted_package
after("+", "noted_package")
try:
    import noted_failing
except ZeroDivisionError as error:
    step, files = error.__traceback__, []
    while step is not None:
        files.append(step.tb_frame.f_code.co_filename)
        step = step.tb_next
    assert len(files) == 2 and files[0] == __file__ and files[1].endswith("noted_failing.py"), files
after("+", "noted_failing")
try:
    import noted_nowhere
except ImportError:
    pass
after("+", "noted_nowhere")
forget()

def elsewhere():
    import noted_outer

thread = threading.Thread(target=elsewhere)
thread.start()
thread.join()
after("+", "+", "noted_inner", "noted_outer")

trace.detach()
assert type(importlib._bootstrap._module_locks) is type(kept) is dict
assert (builtins.__import__, sys.meta_path, sys.path_hooks) == before
forget()
import noted_outer
after()
print("as it should be")
"""


def test_imports_are_noted_and_nothing_stays(tmp_path: Path) -> None:
    (tmp_path / "noted_outer.py").write_text("import noted_inner\n")
    (tmp_path / "noted_inner.py").write_text("")
    (tmp_path / "noted_failing.py").write_text("1 / 0\n")
    (tmp_path / "noted_package").mkdir()
    (tmp_path / "noted_package" / "__init__.py").write_text("from . import part\n")
    (tmp_path / "noted_package" / "part.py").write_text("")
    script = tmp_path / "script.py"
    root = Path(__file__).parents[2]
    script.write_text(f"import sys\nsys.path[:0] = [{str(root)!r}, {str(tmp_path)!r}]\n{SCRIPT}")
    done = subprocess.run(
        [sys.executable, "-I", "-B", str(script)], capture_output=True, text=True, timeout=600
    )
    assert (done.stdout, done.returncode) == ("as it should be\n", 0), done.stderr
