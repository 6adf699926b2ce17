"""Explanations of the model beside training: what a worker needs of the rows that others hold.

`halo` finds the remote vertices that a worker reads, `explanation_graph` has the small graph that stands for a worker's
parts and finds its masks with the kernels of `masked_rows`, `explainer_process` does that in a process of low priority
and `explainer_client` starts, watches and replaces that process. `schedule` says which explanation is in force for
which batch, and `explanations` joins them for the execution mode (`train.execution.explained`).
"""
