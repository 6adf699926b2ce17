"""The interface of rate policies: a way of sharing, and terms of every flow that are fixed before anything runs."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate.amounts import Amounts
from penstock.simulate.state import PRIORITY, Routes, Shape, Terms


class Case(NamedTuple):
    """What a policy may use."""

    shape: Shape
    order: Array  # the workload's items so that each comes after what it waits for
    coflows: Array  # int32 [flows]
    routes: Routes
    amounts: Amounts
    slowness: Array  # float64 [tasks]
    task_kinds: tuple[str, ...]
    kinds: tuple[str, ...]  # of flows
    microbatches: Array  # int32 [flows]
    layers: Array  # int32 [flows]


class RatePolicy(NamedTuple):
    """A name, one of the families of sharing, and the terms of a case's flows."""

    name: str
    family: int
    terms: Callable[[Case], Terms]
    orders: Callable[[Case], list[Array]] | None = None  # ranks that it chose from, where it did


def terms_of(case: Case, weight: Array | None = None, size: Array | None = None, rank: Array | None = None) -> Terms:
    """Terms with defaults: weight 1, size in bytes, one rank, no ceiling."""
    return Terms(
        np.ones((1, 1)) if weight is None else weight,
        case.amounts.sizes if size is None else size,
        np.zeros((1, 1), np.int64) if rank is None else rank,
        np.inf,
    )


def by_rank(
    name: str, ranks: Callable[[Case], Array], orders: Callable[[Case], list[Array]] | None = None
) -> RatePolicy:
    """A policy of strict priority by int64 [iterations or 1, flows] ranks, smaller first; max-min among equals."""
    return RatePolicy(name, PRIORITY, lambda case: terms_of(case, rank=ranks(case)), orders)
