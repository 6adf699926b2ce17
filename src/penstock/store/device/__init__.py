"""Tables that a GPU reads: in its own memory, in pinned host memory, or there with the most-read rows cached.

`tables` has sources of rows with three mechanisms, `kernels` (Triton, imported at the first gather) what they launch.
`divided` moves rows of a pinned table along two paths at once; `host_paths` has the host's threads and decides how many
rows take which path. `copies` copies a host array to where it is read, and allocates host memory that the GPU can read.
`embedding` keeps learnable rows on the device, and `moments` are events on its streams. `penstock.plan.residence`
decides what goes where.
"""
