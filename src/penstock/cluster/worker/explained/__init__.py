"""Explanations of the model beside training: what a worker needs of the rows that others hold.

`explanation_graph` has the small graph that stands for a worker's parts and finds its masks, `explainer_process` does
that in a process of low priority, `explainer_client` starts, watches and replaces that process, and `frames` is what
the two tell each other. `explanations` finds the remote vertices that a worker reads, says which explanation is in
force for which batch, and joins all of it for the execution mode (`train.execution.shared`).
"""
