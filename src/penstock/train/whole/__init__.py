"""Training on the whole graph at once: exact, layer by layer, in bins.

`plan` says which vertices each level has and in which order, and divides every layer into bins, or into ranges of one
array of lists; `memory` chooses the number of bins and where levels are kept. `levels` keeps the rows between two
layers until the backward pass has read them, and adds up their gradients. `prepared` is a step made ready, with its
examples; `in_place` is one whose bins read levels without a copy, with the gradients of these levels. `steps` computes
the bins forward and backward and does the steps of a run, `norms` normalises over all bins of a layer, and `own_module`
does the steps of a module of the user's. `device` captures steps on a GPU, `traced` predicts a step's memory,
`measured` times bins for a profile, and `execution` is the mode's entry. `shared/` is the same among workers.
"""
