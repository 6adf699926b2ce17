"""How flows share links, as kernels: one file for each way of sharing, which rate policies choose from.

`proportional` shares by weight, `priority` strictly by rank and max-min inside a rank, `queues` sends one flow after
the other. `groups` is shared by all of them, and fills links by the groups of a rank.
"""
