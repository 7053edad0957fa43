"""Replace a kernel, or IPython in a terminal, in place by a fresh process; keep variables.

May it restart
    `program` (whether this program can be executed again, and by which command line), `running`
    (what runs in it and would end).
In the old program
    `before` (ends as a kernel ends, and executes the command), `request_queue` (the requests that
    wait), `ports` (the kernel's connection, held meanwhile).
From the old to the new one
    `handover` (what the old program tells), `variables` (the notebook's variables in a file).
In the new program
    `after` (answers the cell that asked, then the requests behind it).
"""
