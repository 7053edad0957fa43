"""The operating system and the interpreter: child processes, files, paths, text and objects.

Processes: `child_process`, `forked_copy`, `import_path`, `host_memory`. Files: `user_paths`,
`writing`, `system_files`, `output`. Python and IPython: `introspection`, `patching`, `shell`,
`text`.

Input from outside the process is read here, with limits on its size; none of it is executed.
"""
