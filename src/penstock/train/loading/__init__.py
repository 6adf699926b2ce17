"""Batches for a loop of the user's own: what `ps.loader` gives.

`given_graph` reads what the user gives. `options` says which fields a loader takes, what PyG calls them, and which
edges a batch has for each `subgraph_type`. `seed_source` says what an epoch goes through and how a batch is made of it.
`graph_batch` is what the user is given, and `batch_fields` makes its values. `batch_loader` is the iterable itself, and
divides batches among processes. Sampling, gathering and copies are those of training.
"""
