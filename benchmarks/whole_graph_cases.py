"""What the simulated benchmarks of whole-graph training share: hardware, models, cuts, and predictions.

The hardware is the source's: a machine has an RTX 3090 and 10 Gb/s. What a bin takes there is not measured but follows
from bytes and operations: gathers reach a third of the memory's 936 GB/s, dense products 10 TFLOP/s, and a bin costs
0.2 ms beside that. A pass backward takes twice a pass forward. Copies between a GPU and its host are not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.cost.profile import Profile
from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.hardware.machines import Machines
from penstock.partition import Cut, assign
from penstock.partition.bins import BinCounts, LayerBins, count_bins
from penstock.partition.problem import whole_of
from penstock.plan.comparison import Comparison, Trial
from penstock.plan.placement import PlacedUnits
from penstock.plan.workloads.whole import WHOLE
from penstock.plan.workloads.whole_section import PlannedLayer, WholeGraphExecution, again_degree, layer_costs

GATHER, PRODUCT, FIXED = 936e9 / 3, 10e12, 2e-4
LINK = 10e9 / 8
BACKWARD = 2.0
NUMBER = 4
"""Bytes of a number of a row."""


@dataclass(frozen=True)
class Model:
    """A model of two layers."""

    name: str
    hidden: int
    heads: int = 0
    dense: int = 1
    """Dense products of a layer."""


MODELS = (Model("sage", 16, dense=2), Model("gcn", 16), Model("gat", 128, heads=8))
"""With 16 columns between the layers; attention has 16 for each of 8 heads."""


@dataclass(frozen=True)
class Exchange:
    """How workers exchange rows, and which rows."""

    exchange: str
    pipeline: str
    bins: int
    flows: str
    send_inputs: bool = False
    sums: bool = False
    """Whether sums of rows travel where they are fewer than the rows."""


def profile_of(model: Model, features: int, classes: int, fixed: float = FIXED) -> Profile:
    """What bins of a model take on the source's GPUs."""
    widths = [(features, model.hidden), (model.hidden, classes)]
    operators: list[dict[str, Any]] = []
    for layer, (width_in, width_out) in enumerate(widths):
        row = 2 * width_in * width_out * model.dense / PRODUCT + 4 * (width_in + width_out) / GATHER
        # Products come before sums where that makes rows narrower; attention reads each head's scores three times.
        read = (width_out if layer == 0 else model.hidden) if model.heads else min(width_in, width_out)
        edge = 4 * (read + 3 * model.heads) / GATHER
        for way, times in (("forward", 1.0), ("backward", BACKWARD)):
            for rows, edges in ((1e3, 1e4), (1e5, 1e6), (1e5, 1e8), (1e7, 1e8)):
                at = {"rows": rows, "edges": edges, "width_in": width_in, "width_out": width_out}
                seconds = {"mean": times * (fixed + row * rows + edge * edges)}
                operators.append({"name": f"{way} {layer}", "sizes": at, "seconds": seconds})
    weights = sum(4.0 * model.dense * width_in * width_out for width_in, width_out in widths)
    gradients = {"name": "gradients", "source": "model", "target": "model", "bytes": [[weights]]}
    fields = {"mode": "whole", "job": {}, "iterations": 1, "batches": 1, "parts": 1, "workers": 1}
    return Profile.model_validate({**fields, "operators": operators, "transfers": [gradients]})


class Cuts:
    """The cuts of one graph, each made once; `rows` and `edges` are those of the graph that it stands for."""

    def __init__(self, graph: Graph, rows: float | None = None, edges: float | None = None) -> None:
        self.graph, self.whole = graph, whole_of(graph)
        self.row_factor = (rows or self.whole.count) / self.whole.count
        self.edge_factor = (edges or len(self.whole.indices)) / len(self.whole.indices)
        self._made: dict[tuple[str, int], Array] = {}

    def owner(self, method: str, workers: int) -> Array:
        """The worker of every vertex. `method` may end in `+balanced`, and in `:vertices` to balance these alone."""
        if (method, workers) not in self._made:
            named, _, balance = method.partition(":")
            base, _, refine = named.partition("+")
            how = Cut(workers, method=base, refine=refine or None, balance=tuple(filter(None, [balance])))
            self._made[method, workers] = assign(self.graph, how, threads=1).assignment
        return self._made[method, workers]

    def counts(
        self, method: str, workers: int, bins: int, eager: bool, again: int = -1, sums: bool = False
    ) -> BinCounts:
        """Two layers of all vertices, in the size of the graph that this one stands for."""
        whole = self.whole
        levels = np.full(whole.count, 2, np.int8)
        owner = self.owner(method, workers)
        found = count_bins(whole.indptr, whole.indices, owner, workers, levels, bins, eager, again, sums)
        return BinCounts([self._scaled(layer) for layer in found.layers], self._times(found.inputs, self.row_factor))

    def _scaled(self, layer: Any) -> Any:
        by_row = {name: self._times(getattr(layer, name), self.row_factor) for name in _ROWS}
        by_edge = {name: self._times(getattr(layer, name), self.edge_factor) for name in ("edges", "remote_edges")}
        again = self._times(layer.again, np.array([self.row_factor, self.edge_factor]))
        return replace(layer, again=again, **by_row, **by_edge)

    @staticmethod
    def _times(counts: Array, factor: Any) -> Array:
        return np.rint(counts * factor).astype(np.int64)


_ROWS = ("rows", "inputs", "halo", "sent", "returned")


def machines_of(workers: int, link: float = LINK) -> Machines:
    """So many machines with one worker each."""
    unlimited = (float("inf"),) * workers
    names = tuple(f"m{number}" for number in range(workers))
    capacities = {"cores": unlimited, "memory_gb": unlimited, "gpus": unlimited}
    return Machines(names, capacities, (link,) * workers, ("",) * workers, (1.0,) * workers)


def predicted(cuts: Cuts, method: str, workers: int, profile: Profile, how: Exchange, link: float = LINK) -> Trial:
    """One step, simulated."""
    eager = how.exchange != "layer" and how.pipeline in ("inter", "both")
    again = again_degree(layer_costs(profile, "cpu")[0], link) if how.exchange == "replicate" else -1
    # Lists of a smaller graph stand for others of as many neighbours as the real one has.
    degree = int(again * cuts.row_factor / cuts.edge_factor) if again > 0 else again
    counts = cuts.counts(method, workers, how.bins, eager, degree, how.sums)
    section = WholeGraphExecution(
        stores=[],
        homes=list(range(workers)),
        bins=how.bins,
        exchange=how.exchange,
        pipeline=how.pipeline,
        send_inputs=how.send_inputs,
        inputs=counts.inputs.tolist(),
        layers=[PlannedLayer.of(layer) for layer in counts.layers],
    )
    run = Comparison(WHOLE.build(profile, section), machines_of(workers, link))
    placed = PlacedUnits("pinned", run.problem.machine_of(run.problem.home), 0.0, 0, 0, 0.0)
    return run.trial(placed, how.flows)


def volume(layers: Sequence[LayerBins], profile: Profile) -> tuple[float, float]:
    """Seconds that the busiest worker computes in a step with one bin for each layer, and bytes that the busiest sends.

    It sends rows of its own, and gradients of the rows that came from others.
    """
    workers = len(layers[0].rows)
    compute, sent = np.zeros(workers), np.zeros(workers)
    for layer, cost in zip(layers, layer_costs(profile, "cpu"), strict=True):
        for rank in range(workers):
            size = [float(each[rank].sum()) for each in (layer.rows, layer.edges, layer.inputs)]
            compute[rank] += cost.forward.seconds(*size) + cost.backward.seconds(*size)
        rows = layer.sent.sum(axis=1)
        sent += (rows.sum(axis=1) + rows.sum(axis=0)) * cost.width_out * NUMBER
    return float(compute.max()), float(sent.max())
