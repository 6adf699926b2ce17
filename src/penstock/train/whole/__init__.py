"""Training on the whole graph at once: exact, layer by layer, in bins.

`plan` says which vertices each level has, in the order of `vertex_order`, and divides every layer into bins, once;
`levels` keeps the rows between two layers until the backward pass has read them, and adds up their gradients. On a GPU
`in_place` has bins that are ranges of one array of lists (`neighbour_lists`, `in_place_plan`) and read levels where
they stand, and `pulled` has their gradients. `passes` computes a layer's bins forward and backward; `norms` normalises
over all bins of a layer. `memory` chooses the number of bins and where levels are kept. `examples` are what the loss
reads and compares. `steps` does the steps of a run, `own_module` those of a module of the user's, and `execution` is
the mode's entry.
"""
