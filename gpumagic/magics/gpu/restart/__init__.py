"""``%gpu restart`` and ``%gpu SPEC --restart``, as far as they are typed and shown.

`restarting` (what begins it: it hands over to `gpumagic.restart`), `report` (the end of it, in the
new process: what came back, and the choice), `assigned_name` (the name in ``x = %gpu restart``),
`modes_over_restart` (what is on, such as ``%cudatime on``, and is on again).
"""
