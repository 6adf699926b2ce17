"""Neighbour sampling on a GPU, in Triton: the same batches as on the CPU, vertex for vertex.

`block` is what the layers read, and the room that a batch may take; `kernels` are the passes of a hop, `hops` launches
the passes of a batch without ever waiting for the device, and `neighbours` is the sampler that the pipeline knows.
`triples` makes batches of triples, and `streams` has the streams beside the one that computes. Nothing here is imported
before a device is asked for: Triton comes with CUDA builds of torch only.
"""
