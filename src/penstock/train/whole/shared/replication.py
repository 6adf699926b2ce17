"""Which rows of other workers are computed here instead of received, by predicted cost.

Only rows of the first layer are: what they read are inputs, which are fetched once and kept, so that a replica costs
computation and nothing else in later steps. Replicas of deeper rows would read further rows that change in every step.
The prediction uses stated rates and not measured ones, so that a worker that is started again decides as before.
"""

from collections.abc import Callable

import numpy as np

from penstock.graph.arrays import Array
from penstock.train.whole.shared.interfaces import CutLists
from penstock.train.whole.shared.levels import Replicate, lengths_of

_LEVEL = 1
"""The level whose rows may be replicated."""
_READ = 4e9
"""Bytes of neighbours' rows that a core aggregates in a second."""
_FLOPS = 2e10
"""Multiplications and additions of a dense product in a second on a core."""
_PRODUCTS = 2
"""Of a row: forward, and backward to the weights. Nothing goes back to inputs that are not learned."""

Cheaper = Callable[[Array], Array]
"""(numbers of neighbours) -> whether a row with so many is cheaper to compute than to receive."""


def replicate_where_cheaper(cut: CutLists, cheaper: Cheaper) -> Replicate:
    """Decides for every vertex of the first hidden level by the length of its list."""

    def chosen(level: int, kind: str, vertices: Array) -> Array:
        if level != _LEVEL or not len(vertices):
            return np.zeros(len(vertices), np.bool_)
        return cheaper(lengths_of(cut, level - 1, kind, vertices))

    return chosen


def cheaper_than(bandwidth: float, width_in: int, width_out: int, constant: bool, learned: bool) -> Cheaper:
    """`bandwidth` in bytes a second. A row that is received costs its bytes, and its gradient's on the way back.

    What is aggregated of `constant` inputs is known after the first step; to `learned` ones gradients go back.
    """
    received = 2 * 4 * width_out / bandwidth
    reads = 0 if constant else 1 + learned
    products = (_PRODUCTS + learned) * 2 * width_in * width_out / _FLOPS

    def cheaper(neighbours: Array) -> Array:
        found: Array = reads * 4 * width_in * (neighbours + 1) / _READ + products < received
        return found

    return cheaper
