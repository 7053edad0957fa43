"""The notebook's variables, kept over the restart.

::

    old process             its child             new process
    keeping ──> pickle_file ──> trial ──────────────> restoring
                pickler         unpickler, pickler    unpickler

- `keeping` writes the variables to a file until all that is in it loads; `restoring` binds them.
- `pickle_file` has one pickle for each variable, all by one `pickler`, so that what they share
  stays shared; behind them are the bytes of arrays and tensors, each once (`data_file`). What else
  the new process needs is the `manifest`.
- `trial` loads them in a child process first, and compares what came back.
- `pickler` and `unpickler` refer to what the new process has anyway: the shell and its like
  (`process_objects`), what modules hold (`module_objects`), the GPUs (`devices`). All else goes by
  the rules in `kinds`.
- `settings` of libraries go on, too.
"""
