"""How steps are done: one engine for bursts of launches and one loop for steps one at a time.

`engine` puts together a source of batches (`sources`, `host_drawn`, `triples`, `whole.device`), a fill of their inputs
(`first_layer.slots`), what computes gradients (`compute`), and an update with them (`update`); a `runner` runs, records
or traces what these do. `one_by_one` does steps on work that comes by itself: the pipeline's batches (`loaded`), or the
whole graph.
"""
