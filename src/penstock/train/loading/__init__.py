"""Batches for a loop of the user's own: what `ps.loader` gives.

`given_graph` reads what the user gives, `options` says which fields a loader takes and what PyG calls them,
`seed_source` what an epoch goes through and how some of it become a batch, `rank_shares` what each of several processes
gets. `graph_batch` is what the user is given, `batch_fields` makes its values, `subgraph_types` says which edges it
has, and `batch_loader` is the iterable itself. Sampling, gathering and copies are those of training.
"""
