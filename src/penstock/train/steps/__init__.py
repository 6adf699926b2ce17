"""How steps are done: an engine for bursts of launches on a device, and a loop for steps one at a time.

`engine` combines a source of batches (`sources`, `host_drawn`, `triples`, `whole.device`), a fill of their inputs
(`first_layer.slots`), the computation of gradients, which stands beside the source, and an update with them (`update`);
a `runner` runs, records or traces the work of these. `one_by_one` does steps on work that others deliver: the
pipeline's batches, or the whole graph.
"""
