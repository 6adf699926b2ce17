"""Executions of a session on the host: steps on batches that the pipeline makes ready, alone or among workers.

`support` declares what an execution mode can do and derives every refusal from that declaration. `loaded` has the
modes, alone and among workers, and the interface of explanations. Captured steps are in `train.device`. `train.session`
has the interface of executions; `train.execution_modes` lists the modes and chooses one for a session.
"""
