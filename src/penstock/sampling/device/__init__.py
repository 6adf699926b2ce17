"""Neighbour sampling on a GPU, in Triton: the same batches as on the CPU, vertex for vertex.

`block` has the blocks that layers read, and the room that a batch may take; `epoch` an epoch's order and keys. `hops`
launches the passes of a hop (`kernels`) without waiting for the device, `program` says which hops a sampler's batches
have, and `slot` holds and draws a batch. `sampler` draws for the pipeline, `triples` makes batches of triples, and
`streams` manages streams. Nothing here is imported before a device is asked
for: Triton comes with CUDA builds of torch only.
"""
