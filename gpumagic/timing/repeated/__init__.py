"""Repeated runs of a loop, until their number, their precision or the time ends them.

`repeat_plan` (what is asked for, and when to stop), `benchmark` (the runs), `queued_runs` (the
GPU's own time, where Python cannot launch fast enough), `cold_caches` (``--cold``).
"""
