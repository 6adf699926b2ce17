"""Explanations of the model beside training: which of the rows that others hold matter to a worker.

`explanation_graph` has the small graph that represents a worker's parts and finds its masks, `explainer_process` does
that in a process of low priority, `explainer_client` starts, watches and replaces that process, and `frames` is the
form of their messages. `explanations` finds the remote vertices that a worker reads, says which explanation applies to
which batch, and joins all of it for the execution mode (`train.execution.loaded`).
"""
