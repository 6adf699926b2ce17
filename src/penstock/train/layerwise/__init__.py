"""Models computed layer by layer over all the vertices that matter, a chunk of them at a time.

`inference` computes one layer over chunks, from a source of rows to a sink of rows, and all layers of a model for exact
outputs; it does so alone, on a device or among workers. A plan says what differs between those: which chunks are
computed here, and where the rows between two layers are kept. `host` is the plan of a machine that computes alone;
`train.device.placed` has that of a graph on a device, and `cluster.worker.layerwise` that of several workers.
"""
