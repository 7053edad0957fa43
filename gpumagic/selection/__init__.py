"""Which GPUs this process sees: a choice parsed, applied and verified; the gate; the claims.

A choice
    `spec` (what is typed, and which devices that is), `auto` (the best ones), `apply` (the choice
    itself), `environment` (its variables), `choice_undo` (as it was before).
Whether it is in effect
    `in_effect`, and `init_trace` (which statement was first where it is too late).
Beside it
    `soft_off` (the gate), `claims` (of several notebooks), `cpu_threads`, `table` (``%gpu``).
"""
