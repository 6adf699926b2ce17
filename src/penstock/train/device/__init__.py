"""Training on a GPU: what is put where, steps captured once and replayed, and the steps that cannot be.

`decision` says what goes where, from what a job allows and what `trial` and `memory` say it takes (`fitting`);
`placement` puts it there, and `placed` is what comes of it. `other_ways` are those in which the host could fill slots
instead. `captured` does steps from memory that never moves, with its `supply` of
batches, its `launches` and a `stopwatch`; `shared` is the same among workers, with `share_supply`, `step_sum` and
`summed`. `device_sampling` and `whole` serve the others. Imported when a job names a device.
"""
