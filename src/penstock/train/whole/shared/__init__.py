"""Training on the whole graph among workers: each computes the rows of its own vertices and receives what it reads.

`interfaces` says what a cluster must give: lists of a cut graph, an all-to-all of lists, and messages of rows. `levels`
finds the rows that every level has on this worker, in the order of `vertex_order` and `row_order`, and `cut_plan`
divides them into bins, as many as `bin_choice` says, and says which rows go where (`cut_groups`) and which gradients
come back when (`returns`, `arriving`); `partial_sums` and `sent_sums` are sums of rows that travel instead of the rows.
`tasks` are the bins with what they wait for. `forward` and `backward` compute them as soon as their inputs are there,
on the rows and messages of `state`; `loss` stands between them and reads the rows that `loss_rows` names.
`gradient_order` adds gradients in an order that does not depend on when they came.
`exchanges` lists the ways to exchange rows. `steps` does the steps of a run, and `execution` is the mode's entry.
"""
