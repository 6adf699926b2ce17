"""Coflows over the ports of one big switch, as flat arrays: what the simulator of traces works on.

Sides of ports are numbered ingress first: side p is port p into the switch, side ports + p is port p out of it. A line
is one coflow on one side; `Lines` lists them with their flows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array

MOST_PORTS = 100_000
MOST_COFLOWS = 1_000_000
MOST_FLOWS = 50_000_000
MOST_BYTES = 1e18  # of one flow, before flows between the same ports are joined
MOST_SECONDS = 1e9  # until an arrival


@dataclass(frozen=True, eq=False)
class TraceCoflows:
    """C coflows of F flows; a flow enters the switch at port `sources[f]` and leaves it at port `targets[f]`.

    The flows of coflow c are `first[c]` to `first[c + 1]`, sorted by source and target, one for each pair of ports and
    none without bytes. Every port has two sides that do not disturb each other. Make one with `join_flows`.
    """

    ports: int
    names: Array  # int64 [C]: what the trace calls them
    arrivals: Array  # float64 [C]: seconds, in any order
    first: Array  # int64 [C + 1]
    sources: Array  # int32 [F]: port
    targets: Array  # int32 [F]: port
    sizes: Array  # float64 [F]: bytes, above 0

    @property
    def count(self) -> int:
        """The number of coflows: C of the shapes above."""
        return len(self.names)

    @property
    def flows(self) -> int:
        """The number of flows: F of the shapes above."""
        return len(self.sizes)


class PortRates(NamedTuple):
    """What ports carry, in bytes/s: into the switch and out of it."""

    ingress: Array  # float64 [ports]
    egress: Array  # float64 [ports]


def coflows_from(
    ports: int, coflows: Sequence[tuple[float, Mapping[tuple[int, int], float]]], names: Sequence[int] | None = None
) -> TraceCoflows:
    """Coflows written out one by one: seconds of arrival and, for (source, target), bytes. Names count from 0."""
    flows = [(c, pair, size) for c, (_, sizes) in enumerate(coflows) for pair, size in sizes.items()]
    return join_flows(
        ports=ports,
        names=np.arange(len(coflows)) if names is None else np.array(names, np.int64),
        arrivals=np.array([arrival for arrival, _ in coflows], np.float64),
        owners=np.array([flow[0] for flow in flows], np.int64),
        sources=np.array([flow[1][0] for flow in flows], np.int64),
        targets=np.array([flow[1][1] for flow in flows], np.int64),
        sizes=np.array([flow[2] for flow in flows], np.float64),
    )


def join_flows(
    ports: int, names: Array, arrivals: Array, owners: Array, sources: Array, targets: Array, sizes: Array
) -> TraceCoflows:
    """Coflows of loose flows in any order (`owners`: the coflow of each); those of one pair of ports become one."""
    _check_coflows(ports, names, arrivals)
    _check_flows(ports, len(names), owners, sources, targets, sizes)
    kept = np.flatnonzero(sizes > 0)
    keys = (owners[kept].astype(np.int64) * ports + sources[kept]) * ports + targets[kept]
    found, which = np.unique(keys, return_inverse=True)
    pairs, out = np.divmod(found, ports)
    first = np.searchsorted(pairs // ports, np.arange(len(names) + 1))
    return TraceCoflows(
        ports=ports,
        names=np.asarray(names, np.int64),
        arrivals=np.asarray(arrivals, np.float64),
        first=first.astype(np.int64),
        sources=(pairs % ports).astype(np.int32),
        targets=out.astype(np.int32),
        # Without flows NumPy would count in integers.
        sizes=np.bincount(which, weights=sizes[kept], minlength=len(found)).astype(np.float64),
    )


def rates_of(rate_bytes_s: float | PortRates, ports: int) -> Array:
    """Rates of all sides of ports after a check, float64 [2 * ports]: the ingress sides, then the egress sides."""
    given = rate_bytes_s if isinstance(rate_bytes_s, PortRates) else PortRates(*[np.full(ports, rate_bytes_s)] * 2)
    for name, values in zip(PortRates._fields, given, strict=True):
        if len(values) != ports:
            raise PenstockError(
                f"There are {len(values)} {name} rates for {ports} ports: give one for each.", code="shape-mismatch"
            )
    out = np.concatenate([np.asarray(values, np.float64) for values in given])
    bad = out[~(np.isfinite(out) & (out > 0))]
    if len(bad):
        raise PenstockError(
            f"A port's rate is {bad[0]:g} bytes/s: give a finite rate above 0.", code="value-out-of-range"
        )
    return out


def _check_coflows(ports: int, names: Array, arrivals: Array) -> None:
    if not 1 <= ports <= MOST_PORTS:
        raise PenstockError(f"The switch has {ports} ports: give 1 to {MOST_PORTS:,}.", code="value-out-of-range")
    if not 1 <= len(names) <= MOST_COFLOWS or len(arrivals) != len(names):
        raise PenstockError(
            f"There are {len(names):,} coflows with {len(arrivals):,} arrivals: give 1 to {MOST_COFLOWS:,} coflows,"
            " and an arrival for each.",
            code="shape-mismatch",
        )
    found, counts = np.unique(names, return_counts=True)
    if len(found) != len(names):
        raise PenstockError(
            f"Two coflows are called {found[counts > 1][0]}: give each a number of its own.", code="duplicate"
        )
    bad = np.flatnonzero(~((arrivals >= 0) & (arrivals <= MOST_SECONDS)))
    if len(bad):
        raise PenstockError(
            f"Coflow {names[bad[0]]} arrives at {arrivals[bad[0]]:g} s: give a number from 0 to {MOST_SECONDS:g}.",
            code="value-out-of-range",
        )


def _check_flows(ports: int, coflows: int, owners: Array, sources: Array, targets: Array, sizes: Array) -> None:
    if len({len(owners), len(sources), len(targets), len(sizes)}) != 1 or len(sizes) > MOST_FLOWS:
        raise PenstockError(
            f"There are {len(owners):,} owners, {len(sources):,} sources, {len(targets):,} targets and"
            f" {len(sizes):,} sizes of flows: give as many of each, {MOST_FLOWS:,} at most.",
            code="shape-mismatch",
        )
    for what, numbers, bound in (("coflow", owners, coflows), ("port", sources, ports), ("port", targets, ports)):
        bad = np.flatnonzero((numbers < 0) | (numbers >= bound))
        if len(bad):
            raise PenstockError(
                f"A flow names {what} {numbers[bad[0]]}, but there are 0 to {bound - 1}: correct it.",
                code="id-out-of-range",
            )
    bad = np.flatnonzero(~((sizes >= 0) & (sizes <= MOST_BYTES)))
    if len(bad):
        raise PenstockError(
            f"A flow has {sizes[bad[0]]:g} bytes: give a number from 0 to {MOST_BYTES:g}.", code="value-out-of-range"
        )


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
