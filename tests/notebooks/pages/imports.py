# Imports spread over the cells, aliased, from packages, inside functions, and used far below.
# %%
import os.path as osp, sys
from pathlib import Path
# %%
import torch.nn.functional as F, torch.backends.cudnn as cudnn
from torch import nn
nn.ReLU(), F.relu.__name__
# %%
import numpy.linalg as la
from numpy import array, pi as PI
la.norm(array([3, 4])), PI
# %%
def late(x):
    import collections, statistics as st
    return st.mean(x), collections.Counter(x).most_common(1)

late([1, 1, 4])
# %%
import torch
cudnn is torch.backends.cudnn, torch.nn is nn
# %%
try:
    import no_such_package
except ImportError:
    no_such_package = None
HAVE = {"package": no_such_package is not None, "torch": "torch" in sys.modules}
HAVE
# %%
import importlib
mods = {name: importlib.import_module(name) for name in ("json", "math", "xml.dom")}
mods["json"].dumps({"a": mods["math"].tau > 6})
# %%
import pandas as pd, matplotlib.pyplot as plt, matplotlib as mpl
from matplotlib.ticker import FuncFormatter
ops, mps = torch.ops, torch.backends.mps
tick = FuncFormatter(lambda v, _: f"{v:.1f} %")
tick(3)
# %%
from math import *
sqrt(16), floor(e)
# %%
sqrt(16), late([2, 3, 3]), mods["xml.dom"].__name__, tick(4), HAVE
# %%
cudnn is torch.backends.cudnn, ops is torch.ops, plt is mpl.pyplot, mods["math"].sqrt is sqrt
# %%
from types import ModuleType
utils = ModuleType("utils")
exec("def twice(x): return 2 * x\nK = 5", utils.__dict__)
utils.twice(utils.K)
# %%
osp.basename(osp.join("a", "b.txt")), Path("a") / "b", pd.Series([1, 2]).sum(), la.norm(array([6, 8]))
