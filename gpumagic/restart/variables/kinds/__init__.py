"""How objects of some classes are pickled: cloudpickle, torch and NumPy leave something out.

- `rules` says what a rule is, and finds those of a class.
- `of_python`, `of_numpy` and `of_torch` have the rules for Python's own classes, for arrays and
  DataFrames, and for tensors and optimizers.
- `refused` has what cannot be kept, and says why; `mapped_files` finds memory that is a file's.
"""
