"""``%cudatime`` and ``%%cudatime``.

`cudatime_options` (what can be typed), `cudatime_command` (one run), `repeated` (repeated runs),
`on_devices` (``--on``), `timing_outcome` (what is done with the times, and further runs),
`cudatime_verbs` (``on``, ``off``, ``log``, ``compare``, ``forget``).
"""
