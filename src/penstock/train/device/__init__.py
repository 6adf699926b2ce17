"""Training on a GPU: where the graph is placed, and how steps run, captured as CUDA graphs and replayed where possible.

`memory` and `traced` predict what training takes of the device; `decision` decides from that and the job what goes
where, and whether steps are captured. `placement` carries it out with `placed_graph`, and `placed` is what a session
then trains with; `batch_placement` does the same for a loader alone. `captured` replays steps on the batches of
`supply`, with the recordings and the stopwatch of `launches`. `host_drawn` and `host_filled_steps` are for batches that
the host draws or fills, `triple_steps` for triples, and `summed` for workers that sum their gradients. `execution` has
the execution modes. Imported when a job names a device.
"""
