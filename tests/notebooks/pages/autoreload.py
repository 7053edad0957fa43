# A module that is written beside the notebook, changed, and loaded again.
# %%
%load_ext autoreload
%autoreload 2
# %%
from pathlib import Path
import os, sys

def write(body, at):
    Path("layers.py").write_text(body)
    os.utime("layers.py", (at, at))

write("GAIN = 2\ndef f(x): return x * GAIN\nclass Layer:\n    def go(self): return f(1)\n", 1_000_000_000)
sys.path.insert(0, "")
import layers
from layers import Layer, f
layer = Layer()
f(1), layer.go()
# %%
f(10), layers.GAIN, f is layers.f
# %%
write("GAIN = 3\ndef f(x): return x * GAIN\nclass Layer:\n    def go(self): return f(2)\n", 1_000_000_100)
# %%
f(1), layers.f(1), layer.go()
# %%
f(10), layer.go(), type(layer) is layers.Layer
# %%
Path("pkg").mkdir()
Path("pkg/__init__.py").write_text("from pkg.deep import name\n")
Path("pkg/deep.py").write_text("name = 'deep'\n")
# %%
import pkg, pkg.deep as deep
from pkg import name
pkg.deep is deep, name
# %%
deep.name, pkg.__name__, sys.modules["pkg.deep"] is deep
# %%
%autoreload 0
import importlib
write("GAIN = 4\n", 1_000_000_200)
importlib.reload(layers).GAIN
# %%
layers.GAIN, "" in sys.path
