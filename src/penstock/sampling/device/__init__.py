"""Neighbour sampling on a GPU, in Triton: the same batches as on the CPU, vertex for vertex.

`block` is what the layers read, `kernels` are the passes of a hop, `room` says how much of it a batch may take, `hops`
launches the passes of a batch without ever waiting for the device, and `neighbours` is the sampler that the pipeline
knows. Nothing here is imported before a device is asked for: Triton comes with CUDA builds of torch only.
"""
