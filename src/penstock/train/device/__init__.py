"""Training on a GPU: what is put where, steps captured once and replayed, and the steps that cannot be.

`options` is the job's part, `choosing` decides what a job allows, `trial` and `memory` say beforehand what it takes,
`placed` puts the graph where it belongs. `captured` does steps from memory that never moves, with its `supply` of
batches, its `launches` and a `stopwatch`; `drawing` and `whole` serve the others. Imported when a job names a device.
"""
