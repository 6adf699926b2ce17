"""Training on the whole graph on a cluster: workers compute bins of their own vertices and exchange rows."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from penstock.cost.profile import Profile
from penstock.hardware.cluster import ClusterDocument
from penstock.hardware.machines import Machines, machines_of
from penstock.plan.memory import HeldMemory
from penstock.plan.workloads.bin_cost import FORWARD, LayerCost, layer_costs, operator_name
from penstock.plan.workloads.entry import ExecutionWorkload, PlannedRun, WorkloadEntry
from penstock.plan.workloads.message_cost import MESSAGE, MessageCost, handling_of, message_cost
from penstock.plan.workloads.whole_section import CountedRun, WholeGraphExecution
from penstock.plan.workloads.whole_template import WholeTemplate, bin_name
from penstock.simulate.simulation import Simulator

_EDGE_BYTES = 20
"""Bytes that an edge of a bin takes: its index, and the transposed lists of the backward pass."""
_NUMBER = 4
"""Bytes of a number of an input, or of a row that travels."""
_BINS = (1, 2, 4, 8, 16)
"""Numbers of bins that are tried where the job leaves it open."""
_GAIN, _CLEAR_GAIN = 0.03, 0.1
"""Share of a step that more bins must save to be chosen, and several instead of one: predictions are no better than
that, and what several bins cost is the least certain part of them."""
_MOST_FLOWS = 8192
"""Flows of a layer up to which a number of bins is tried."""
_FLOWS = "hermod"
"""The flow policy with which they are tried: what a step needs first is sent first."""
_WORDS = {
    "forward": "computing bins forward",
    "backward": "computing bins backward",
    "sum": "summing gradients",
}


def _set_up(run: PlannedRun) -> WholeGraphExecution:
    """The run with the job's bins, or with as many as let it overlap best: small ones overlap more and cost more."""
    counted, job = CountedRun(run), run.job
    workers = len(counted.homes)
    if job.bins or workers == 1 or job.exchange == "layer" or job.pipeline == "none":
        return counted.section(job.bins or 1)
    fit = [bins for bins in _BINS if bins == 1 or workers**2 * bins <= _MOST_FLOWS]
    machines = machines_of(run.cluster, run.profile.rate)
    chosen, least = None, float("inf")
    for bins in fit:
        section = counted.section(bins)
        seconds = _alone(run.profile, section, machines)
        gain = _CLEAR_GAIN if chosen is not None and chosen.bins == 1 else _GAIN
        if chosen is None or seconds < (1 - gain) * least:
            chosen, least = section, seconds
    assert chosen is not None
    return chosen


def _alone(profile: Profile, execution: WholeGraphExecution, machines: Machines) -> float:
    """Seconds of one step by itself."""
    load = WholeTemplate(profile, execution).build()
    place = np.zeros(load.tasks, np.int32)
    for task, home in _pinned(execution).items():
        place[load.task_names.index(task)] = home
    return Simulator(load, machines.network(), 1, _FLOWS, np.array(machines.speeds)).makespan(place)


def _pinned(execution: WholeGraphExecution) -> dict[str, int]:
    """Rows stay with their part, so workers do, too."""
    stores = {name: number for number, name in enumerate(execution.stores)}
    return stores | {f"worker-{rank}": home for rank, home in enumerate(execution.homes)}


def _build(profile: Profile, execution: WholeGraphExecution) -> ExecutionWorkload:
    notes, costs = [], layer_costs(profile, execution.device)
    if not profile.measurements(MESSAGE, "cpu"):
        notes.append("The profile has no messages, so that handling them costs nothing: measure it again.")
    if execution.device != "cpu" and not profile.measurements(operator_name(FORWARD, 0), execution.device):
        notes.append("Bins were measured on processors: on GPUs they take less, and so may a step.")
    load = WholeTemplate(profile, execution).build()
    return ExecutionWorkload(
        load,
        memory=_held_memory(execution, costs),
        pinned=_pinned(execution),
        period=1,
        floor_s=partial(_busiest_worker, execution, costs, message_cost(profile)),
        words=_WORDS,
        notes=tuple(notes),
    )


def _busiest_worker(
    execution: WholeGraphExecution, costs: list[LayerCost], message: MessageCost, machines: Machines
) -> float:
    """Seconds that some worker needs for its forward pass and then for its backward pass.

    The second begins when the first is done, which bounds by links or by dependencies over a whole step do not see. A
    pass takes as long as its bins. Forward it takes as long as the rows that the worker reads, and then the last bin;
    backward as long as the first bin, and then the gradients of these rows.
    """
    homes, share = np.array(execution.homes), execution.share
    elsewhere = homes[:, None] != homes[None, :]
    read, forward, backward = (np.zeros(len(homes)) for _ in range(3))
    turns = np.zeros((2, len(homes)))
    handling = handling_of(execution, costs, message)
    for number, (layer, cost) in enumerate(zip(execution.layers, costs, strict=True)):
        counted = layer.counted()
        read += (counted.sent.sum(axis=1) * elsewhere).sum(axis=0) * cost.width_out * _NUMBER * share
        edges = counted.edges - (1 - share) * counted.remote_edges * (number > 0)
        for rank in range(len(homes)):
            sizes = counted.rows[rank], edges[rank], counted.inputs[rank]
            bins = [*zip(*(each.tolist() for each in sizes), strict=True)]
            more = [counted.again[rank].tolist()] if counted.again[rank, 0] else []
            forward[rank] += sum(cost.forward.seconds(*each) for each in [*bins, *more])
            backward[rank] += sum(cost.backward.seconds(*each) for each in [*bins, *more])
            forward[rank] += handling.forward[number][rank].sum()
            backward[rank] += handling.backward[number][rank].sum()
            turns[:, rank] = [min(line.seconds(*each) for each in bins) for line in (cost.forward, cost.backward)]
    travel, speeds = read / np.array(machines.rates)[homes], np.array(machines.speeds)[homes]
    halves = np.maximum([forward, backward] / speeds, turns / speeds + travel)
    return float(halves.sum(axis=0).max())


def _held_memory(execution: WholeGraphExecution, costs: list[LayerCost]) -> tuple[HeldMemory, ...]:
    """A layer's rows, own and read, from its forward to its backward pass; bins and inputs for the whole run."""
    found: list[HeldMemory] = []
    for rank in range(len(execution.homes)):
        fixed = 0.0
        for number, (layer, cost) in enumerate(zip(execution.layers, costs, strict=True)):
            fixed += _EDGE_BYTES * sum(layer.edges[rank])
            kept = float(sum(layer.rows[rank]) * cost.width_out)
            if number:
                kept += layer.halo[rank] * cost.width_in
            else:
                fixed += _NUMBER * cost.width_in * (sum(layer.rows[rank]) + layer.halo[rank])
            first, last = (bin_name(way, number, 0, rank) for way in ("forward", "backward"))
            gb = kept * execution.number_bytes / 1e9
            found.append(HeldMemory(first, gb, execution.device, until=last))
        found.append(HeldMemory(f"worker-{rank}", fixed / 1e9, execution.device))
    return tuple(found)


def conditions(cluster: ClusterDocument) -> Mapping[str, Any]:
    """Nothing of a cluster decides what a bin takes."""
    return {}


WHOLE = WorkloadEntry(
    "whole",
    WholeGraphExecution,
    _set_up,
    _build,
    conditions,
    samplers=frozenset({"whole"}),
    any_size=True,
    decides=lambda execution: {"bins": execution.bins, "replicate_costs": execution.replicate_costs},
)
