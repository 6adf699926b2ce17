"""Neighbour sampling on a GPU, in Triton: the same batches as on the CPU, vertex for vertex.

`block` has the blocks that layers read, and the room that a batch may take; `kernels` are the passes of a hop, `hops`
launches the passes of a batch without waiting for the device, and `neighbours` is the sampler for the pipeline.
`triples` makes batches of triples, and `streams` manages streams. Nothing here is imported before a device is asked
for: Triton comes with CUDA builds of torch only.
"""
