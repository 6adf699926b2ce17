"""The sides of ports that each coflow uses, and its flows there.

Sides are numbered ingress first: side p is port p into the switch, side ports + p is port p out of it. A line is one
coflow on one side.
"""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate.traces.coflows import TraceCoflows


class Lines(NamedTuple):
    """The L lines of all coflows, those of a coflow by ascending side."""

    first: Array  # int64 [C + 1]: the lines of each coflow
    sides: Array  # int32 [L]
    flow_first: Array  # int64 [L + 1]: where the flows of each line begin in `flows`
    flows: Array  # int32 [2F]
    flow_sides: Array  # int32 [2, F]: the two sides that a flow uses


def lines_of(coflows: TraceCoflows) -> Lines:
    """The sender and receiver lines of coflows."""
    flow_sides = np.stack([coflows.sources, coflows.ports + coflows.targets]).astype(np.int32)
    owners = np.repeat(np.arange(coflows.count), np.diff(coflows.first))
    # Flows are sorted by coflow and ingress side already; the sort is stable, so that flows of a line stay in order.
    keys = (owners * 2 * coflows.ports + flow_sides).ravel()
    order = np.argsort(keys, kind="stable")
    found, begins = np.unique(keys[order], return_index=True)
    owner, side = np.divmod(found, 2 * coflows.ports)
    return Lines(
        first=np.searchsorted(owner, np.arange(coflows.count + 1)).astype(np.int64),
        sides=side.astype(np.int32),
        flow_first=np.append(begins, len(keys)).astype(np.int64),
        flows=(order % max(coflows.flows, 1)).astype(np.int32),
        flow_sides=flow_sides,
    )


def line_bytes(lines: Lines, sizes: Array) -> Array:
    """Bytes on every line, float64 [L]."""
    if len(lines.sides) == 0:
        return np.zeros(0)
    return np.asarray(np.add.reduceat(sizes[lines.flows], lines.flow_first[:-1]))
