"""Parameter servers: each holds a range of the weights with their optimiser, and steps when all gradients are there.

`shard` is what a server knows and does, `pieces` how weights and an optimiser's state are cut into ranges and joined,
`requests` what is checked of what workers ask.
"""

from penstock.cluster.server.pieces import check_served

__all__ = ["check_served"]
