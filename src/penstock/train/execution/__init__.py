"""How a session is executed on the host: steps on batches that the pipeline makes ready, alone or among workers.

`support` declares what an execution mode can do and makes every refusal from that declaration. `loaded` and `shared`
are modes; `shared` also has the interface of a worker group. Captured steps are in `train.device`. `train.session` says
what a mode does for the loop; `train.execution_modes` is the list of modes and chooses one for a session.
"""
