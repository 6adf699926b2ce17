"""Parameter servers: each has a range of all weights with their optimiser, and steps when all gradients are there.

`shard` is what a server knows and does, `flat_state` how an optimiser's state is laid out in a row and back.
"""
