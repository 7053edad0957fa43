"""Variables written to files by one process, and restored by the one that replaces it.

All are written as one graph of objects, so that what they share stays shared: an optimizer still
steps the parameters of its model. A function that was defined in the notebook has the notebook's
namespace as its globals afterwards too, and the globals that it uses are kept with it.

===================  ===========================================================================
`names`              the globals that a function uses; the names that imports bind
`plan`               what can be kept
`pickler`            pickles, without large data: tensors, arrays, long byte strings
`tables`             what pickles refer to by number
`reducers`           objects that cloudpickle refuses, or does not restore as they were
`shared_memory`      memory that arrays and tensors share
`constructors`       what the pickles call when they are loaded
`random_state`       the random generators
`library_settings`   process-wide settings of torch, NumPy, pandas and others
`python_settings`    process-wide settings of Python
`writer`             writing the files
`trial`              a child process that tries whether they load
`reader`             reading the files; moving them to a folder where something does not load
===================  ===========================================================================
"""

from __future__ import annotations

from gpumagic.restart.variables.plan import Plan, plan
from gpumagic.restart.variables.reader import Restored, load, preserve, restore
from gpumagic.restart.variables.trial import Trial
from gpumagic.restart.variables.writer import close, write

__all__ = ["Plan", "Restored", "Trial", "close", "load", "plan", "preserve", "restore", "write"]
