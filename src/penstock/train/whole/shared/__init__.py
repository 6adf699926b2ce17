"""Training on the whole graph among workers: each computes the rows of its own vertices and receives those it reads.

`interfaces` says what a cluster must provide: lists of a partitioned graph, an all-to-all of lists, and messages of
rows. `levels` finds the rows that every level has on this worker, and their order. `cut_plan` divides them into bins
and decides which rows are sent where and when gradients return. `partial_sums` are sums of rows that are sent instead
of the rows. `shared_step` is a worker's part of a step made ready: the bins with what they wait for, and the rows that
the loss reads. `passes` are the forward pass, the loss and the backward pass, which adds gradients in a fixed order;
`state` has the rows and messages of one step. `steps` does the steps of a run and lists the ways to exchange rows.
`execution` is the mode's entry and chooses the number of bins.
"""
