"""Training on a GPU: what is put where, steps captured once and replayed, and the steps that cannot be.

`options` is the job's part, `choosing` decides what a job allows, `placed` puts the graph where it belongs, `captured`
does steps from memory that never moves, `drawing` and `whole` serve the others, `memory` says beforehand what it all
takes. Imported when a job names a device.
"""
