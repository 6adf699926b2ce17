"""Batches for a training loop of the user's own, as `ps.loader` returns them.

`given_graph` reads what the user passes. `options` says which fields a loader takes, what PyG calls them, and which
edges a batch has for each `subgraph_type`. `seed_source` is what an epoch iterates over and how a batch is made of it.
`graph_batch` is the batch that the user gets, and `batch_fields` computes its values. `batch_loader` is the iterable
itself, and divides batches among processes. Sampling, gathering and copies are those of training.
"""
