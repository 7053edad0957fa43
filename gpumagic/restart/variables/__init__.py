"""Variables written to a file by one process and brought back by the one that replaces it.

All are written as one graph of objects, so that what they share stays shared: an optimizer still
steps the parameters of its model. A function that was defined in the notebook lives in the
notebook's namespace afterwards too, and brings the globals that it uses.

=================  =============================================================================
`naming`           the globals that a function uses; the names that imports bind
`planning`         what can be kept
`pickling`         pickles, and what is left out of them: tensors, arrays, long byte strings
`reducing`         objects that cloudpickle refuses, or brings back otherwise than they were
`blocks`           memory that arrays and tensors share
`rebuilding`       what the pickles call as they are loaded
`random_state`     the random generators
`settings`         what torch, NumPy, pandas and others were told for the whole process
`writing`          the files, as they are written
`trial`            a child that tries whether they load
`reading`          the files, as they are read; left behind where something did not load
=================  =============================================================================
"""

from __future__ import annotations

from gpumagic.restart.variables.plan import Plan, plan
from gpumagic.restart.variables.reader import Restored, load, preserve, restore
from gpumagic.restart.variables.trial import Trial
from gpumagic.restart.variables.writer import close, write

__all__ = ["Plan", "Restored", "Trial", "close", "load", "plan", "preserve", "restore", "write"]
