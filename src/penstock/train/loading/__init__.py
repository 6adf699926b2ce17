"""Batches for a loop of the user's own: what `ps.loader` gives.

`options` says which fields of a job a loader takes, `seed_source` what an epoch goes through and how some of it become
a batch, `rank_shares` what each of several processes gets, `graph_batch` what the user is given and `batch_loader` the
iterable itself. Sampling, gathering and copies are those of training.
"""
