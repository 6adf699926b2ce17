"""Training on a GPU: what is put where, steps captured once and replayed, and the steps that cannot be.

`options` is the job's part; `choosing` says what a job allows, `trial` and `memory` what it takes, and `deciding` what
goes where; `placing` puts it there, and `placed` is what comes of it. `captured` does steps from memory that never
moves, with its `supply` of batches, its `launches` and a `stopwatch`; `drawing` and `whole` serve the others. Imported
when a job names a device.
"""
