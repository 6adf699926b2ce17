"""Training on the whole graph on a cluster: workers compute bins of their own vertices and exchange rows."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from penstock.cost.profile import Profile
from penstock.graph.arrays import Array
from penstock.hardware.cluster import ClusterDocument
from penstock.hardware.machines import Machines, machines_of
from penstock.partition.bins import LayerBins
from penstock.plan.workloads.entry import (
    ExecutionWorkload,
    HeldMemory,
    PlannedRun,
    Summed,
    WorkloadEntry,
    sum_around_ring,
    sum_on_servers,
)
from penstock.plan.workloads.whole_section import (
    FORWARD,
    MESSAGE,
    CountedRun,
    LayerCost,
    MessageCost,
    WholeGraphExecution,
    handling_of,
    layer_costs,
    message_cost,
    operator_name,
)
from penstock.simulate.simulation import Simulator
from penstock.simulate.workload import Item, Workload, WorkloadBuilder

# One step on the whole graph as a workload: bins forward and backward, rows and gradients between workers, sums. A
# worker computes one bin at a time, in a fixed order. What one worker sends another in one layer and direction goes bin
# after bin over one connection; all of it, from and to every worker, is one coflow. A run may choose among bins that
# are ready, and the template cannot: bins are ordered by when their inputs are sent.

_NUMBER = 4
"""Bytes of a value in a row that is sent."""
Bins = list[list[Item]]
"""The tasks of a layer: for every worker, its bins by number."""
Connections = dict[tuple[int, int], dict[int, Item]]
"""The flows of a layer in one direction: from one worker to another, by the bin after which they start."""

Seconds = Callable[..., float]
"""Seconds of a bin with so many rows, edges and inputs."""


def bin_name(direction: str, layer: int, place: int, rank: int) -> str:
    """The name of the task that computes a bin."""
    return f"{direction} of layer {layer}, bin {place}, worker {rank}"


class WholeTemplate:
    """Collects the tasks and flows of a step."""

    def __init__(self, profile: Profile, execution: WholeGraphExecution) -> None:
        self._profile, self._section = profile, execution
        self._costs = layer_costs(profile, execution.device)
        self._layers = [layer.counted() for layer in execution.layers]
        self._handling = handling_of(execution, self._costs, message_cost(profile))
        self._building = WorkloadBuilder("training")
        self._stores = [self._process(name, "store") for name in execution.stores]
        self._servers = [self._process(f"server-{number}", "server") for number in range(execution.servers)]
        self._workers = [self._process(f"worker-{rank}", "worker") for rank in range(len(execution.homes))]
        self._last: list[Item | None] = [None] * len(self._workers)
        self._updates = [
            self._task(f"update, worker {rank}", "update", 0.0, rank) for rank in range(len(self._workers))
        ]

    def build(self) -> Workload:
        """The workload of one step."""
        forward = self._forward()
        backward = self._backward()
        widths = [cost.width_in * cost.width_out for cost in self._costs]
        transfer = self._profile.transfer("gradients")
        whole = transfer.total if transfer is not None else 4.0 * sum(widths)
        for number in reversed(range(len(self._layers))):
            done = [bins[self._turns(number, rank, True)[-1]] for rank, bins in enumerate(backward[number])]
            self._sum(Summed(f"layer {number}", whole * widths[number] / sum(widths), done, self._updates))
        for rank, update in enumerate(self._updates):
            self._building.wait(backward[0][rank][self._turns(0, rank, True)[-1]], update)
            self._building.wait(update, forward[0][rank][0], 1)
        return self._building.build()

    def _forward(self) -> list[Bins]:
        made: list[Bins] = []
        for number, layer in enumerate(self._layers):
            seconds, handling = self._costs[number].forward.seconds, self._handling.forward[number]
            made.append(self._compute(number, layer, "forward", seconds, handling))
            if number:
                self._exchange(number - 1, self._layers[number - 1].sent, made[-2], layer.needed, made[-1], "rows")
            elif self._section.send_inputs:
                self._send_inputs(made[0])
        return made

    def _backward(self) -> list[Bins]:
        made: list[Bins] = [[] for _ in self._layers]
        for number in reversed(range(len(self._layers))):
            layer = self._layers[number]
            seconds, handling = self._costs[number].backward.seconds, self._handling.backward[number]
            made[number] = self._compute(number, layer, "backward", seconds, handling)
            if number + 1 < len(self._layers):
                above = self._layers[number + 1].returned
                self._exchange(number, above, made[number + 1], layer.awaited, made[number], "gradients")
        return made

    def _compute(self, number: int, layer: LayerBins, direction: str, seconds: Seconds, handling: Array) -> Bins:
        """A task for each bin, including the messages handled meanwhile: a worker's bins one after the other."""
        share = self._section.share
        edges = layer.edges - (1 - share) * layer.remote_edges * (number > 0)
        found: Bins = []
        for rank in range(len(self._workers)):
            bins = range(self._section.bins)
            tasks: dict[int, Item] = {}
            for place in self._turns(number, rank, direction == "backward"):
                counts = layer.rows[rank, place], edges[rank, place], layer.inputs[rank, place]
                work = seconds(*map(float, counts)) + float(handling[rank, place])
                if place == bins[-1] and layer.again[rank, 0]:
                    # Rows of other workers come last: only this worker's next layer waits for them.
                    work += seconds(*map(float, layer.again[rank]))
                tasks[place] = self._task(bin_name(direction, number, place, rank), direction, work, rank)
                self._chain(rank, tasks[place])
            found.append([tasks[place] for place in bins])
        return found

    def _turns(self, number: int, rank: int, backward: bool) -> list[int]:
        """A worker's bins of a layer in the order of one pass."""
        bins = list(range(self._section.bins))
        return bins[::-1] if backward and not self._layers[number].onward[rank] else bins

    def _chain(self, rank: int, task: Item) -> None:
        before = self._last[rank]
        if before is not None:
            self._building.wait(before, task)
        self._last[rank] = task

    def _exchange(self, level: int, sent: Array, senders: Bins, until: Array, readers: Bins, what: str) -> None:
        """The flows from one layer's bins to those of another, forward or backward, and what waits for them."""
        backward = what == "gradients"
        flows = self._send(level, sent, senders, what, backward)
        for (source, target), found in flows.items():
            if self._section.starts_early:
                for place in range(self._section.bins):
                    last = int(until[target, place, source])
                    if last in found:
                        self._building.wait(found[last], readers[target][place])
            else:
                number, ending = level if backward else level + 1, list(found.values())[-1]
                self._building.wait(ending, readers[target][self._turns(number, target, backward)[0]])
                if not self._section.sends_early:
                    # With a layer-wise exchange, a worker continues only when its own rows have left as well.
                    self._building.wait(ending, readers[source][self._turns(number, source, backward)[0]])

    def _send(self, level: int, sent: Array, senders: Bins, what: str, backward: bool) -> Connections:
        section, width = self._section, self._costs[level].width_out
        in_one = not (section.sends_early or section.starts_early)
        # Policies that go by layers send first what the step needs first.
        place_in_step = 2 * len(self._layers) - level if backward else level
        flows: Connections = {}
        for source, target in np.argwhere(sent.sum(axis=1) > 0).tolist():
            order = self._turns(level + 1 if backward else level, source, backward)
            counts = sent[source, :, target].tolist()
            if in_one:
                counts = [sum(counts) if place == order[-1] else 0 for place in range(section.bins)]
            before: Item | None = None
            for place in (each for each in order if counts[each]):
                flow = self._building.flow(
                    senders[source][place], self._workers[target], counts[place] * section.share * width * _NUMBER,
                    f"layer {what}", name=f"{what} of layer {level}, bin {place}, worker {source} to {target}",
                    coflow=f"{what} of layer {level}", follows_itself=False, awaited_by_target=False,
                    layer=place_in_step,
                )  # fmt: skip
                if not section.sends_early:
                    self._building.wait(senders[source][order[-1]], flow)
                if before is not None:
                    self._building.wait(before, flow)
                before = flow
                flows.setdefault((source, target), {})[place] = flow
        return flows

    def _send_inputs(self, readers: Bins) -> None:
        """Inputs of other workers, where they are sent in every step: the first layer waits for all of them."""
        inputs, width = np.array(self._section.inputs), self._costs[0].width_in
        starts = [self._task(f"start, worker {rank}", "update", 0.0, rank) for rank in range(len(readers))]
        for rank, start in enumerate(starts):
            self._building.wait(self._updates[rank], start, 1)
        for source, target in np.argwhere(inputs > 0).tolist():
            self._building.flow(
                starts[source], readers[target][0], float(inputs[source, target]) * width * _NUMBER, "inputs",
                name=f"inputs, worker {source} to {target}", coflow="inputs", follows_itself=False,
            )  # fmt: skip

    def _sum(self, summed: Summed) -> None:
        if self._servers:
            seconds = self._profile.operator("sum").seconds.mean / len(self._layers)
            sum_on_servers(self._building, summed, self._servers, seconds)
        elif len(self._workers) > 1:
            sum_around_ring(self._building, summed, self._workers)

    def _process(self, name: str, kind: str) -> Item:
        """A process of the run, which takes no time by itself."""
        gpus = self._section.gpus if kind == "worker" else 0.0
        # Stores are read once, before the first step.
        held = {"cores": 0.0 if kind == "store" else 1.0, "memory_gb": self._profile.memory_gb(kind), "gpus": gpus}
        return self._building.task(name, kind, 0.0, held, follows_itself=False)

    def _task(self, name: str, kind: str, seconds: float, rank: int) -> Item:
        return self._building.work(name, kind, seconds, self._workers[rank])


_EDGE_BYTES = 20
"""Bytes that an edge of a bin takes: its index, and the transposed lists of the backward pass."""
_BINS = (1, 2, 4, 8, 16)
"""Numbers of bins that are tried where the job leaves it open."""
_GAIN, _CLEAR_GAIN = 0.03, 0.1
"""The share of a step that more bins must save to be chosen, and several instead of one: predictions are no more exact
than that, and the cost of several bins is their least certain part.
"""
_MOST_FLOWS = 8192
"""The most flows of a layer for which a number of bins is tried."""
_FLOWS = "hermod"
"""The flow policy of these trials: what a step needs first is sent first."""
_WORDS = {
    "forward": "computing bins forward",
    "backward": "computing bins backward",
    "sum": "summing gradients",
}


def _set_up(run: PlannedRun) -> WholeGraphExecution:
    """The run with the job's bins, or with the number that overlaps best: smaller bins overlap more and cost more."""
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
    """Seconds of a single step."""
    load = WholeTemplate(profile, execution).build()
    place = np.zeros(load.tasks, np.int32)
    for task, home in _pinned(execution).items():
        place[load.task_names.index(task)] = home
    return Simulator(load, machines.network(), 1, _FLOWS, np.array(machines.speeds)).makespan(place)


def _pinned(execution: WholeGraphExecution) -> dict[str, int]:
    """Workers are pinned, as rows stay with their part."""
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
    """A lower bound: seconds that some worker needs for its forward pass and then for its backward pass.

    The second begins when the first is done, which bounds by links or by dependencies over a whole step do not see. A
    pass takes at least as long as its bins. Forward it takes as long as receiving the rows that the worker reads, and
    then the last bin; backward as long as the first bin, and then the gradients of these rows.
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
    """Empty: nothing of a cluster affects the cost of a bin."""
    return {}


WHOLE = WorkloadEntry(
    "whole",
    WholeGraphExecution,
    _set_up,
    _build,
    conditions,
    samplers=lambda sampler: not sampler.makes_batches,
    any_size=True,
    decides=lambda execution: {"bins": execution.bins, "replicate_costs": execution.replicate_costs},
)
