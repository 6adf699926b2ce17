"""Models computed layer by layer over all the vertices that matter, a chunk of them at a time.

`engine` computes one layer over chunks, from whoever has the rows it reads to whoever keeps those it gives; it does so
alone, on a device or among workers. `inference` drives it through all layers of a model for exact outputs. `plan` says
what differs between those ways: which chunks are computed here, and where the rows between two layers are kept.
`host` is the plan of a machine that computes alone; `train.device.whole` has that of a graph on a device, and
`cluster.worker.layerwise` that of several workers.
"""
