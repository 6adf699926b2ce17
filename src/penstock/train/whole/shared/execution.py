"""The execution mode of sampler `whole` among workers."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.nn.operator_costs import LayerSizes, OrderCosts
from penstock.pipeline.options import PASSES
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.pipeline.stages import Recorder
from penstock.train.batch_source import layers_of
from penstock.train.execution.loaded import LoadedExecution, SharedExecution
from penstock.train.session import Pause, Session, Steps
from penstock.train.steps.group import WorkerGroup
from penstock.train.steps.one_by_one import OneByOne
from penstock.train.whole.memory import WHOLE_STEPS, Decision, LayerSize, decide, edge_numbers, read_decisions
from penstock.train.whole.shared.cut_plan import make_cut_plan
from penstock.train.whole.shared.interfaces import CutLists, Rows, WholeWorkers
from penstock.train.whole.shared.levels import LevelRows, Replicate, batches_of, find_levels, lengths_of
from penstock.train.whole.shared.shared_step import LossRowSource, SharedStep
from penstock.train.whole.shared.steps import EXCHANGES, ExchangedStep, Exposure
from penstock.train.whole.steps import RepeatedWork, first_epoch

# The number of bins of a worker's layers where the job leaves it open, by predicted time. With B bins, all but about
# one part in B of what compute and messages could do at the same time overlaps. Every bin has a cost of its own, and so
# has every message at both its ends. So a step takes
#
# compute + messages - S (1 - 1 / B) + B F
#
# seconds: S is what could overlap, and F what a bin of every layer costs with its messages. One bin is the schedule of
# exchange `layer`; several are chosen only where they save a clear share of that.
#
# The compute time is predicted on a host by the operator costs in the job. All its workers have them, also one that is
# restarted and must divide its rows as before. The other rates were measured on one CPU core or one GPU of common
# machines, not on this one. `penstock plan` simulates several numbers of bins with a measured profile.

_MOST = 32
_GAIN = 0.1
"""The share of a step that several bins must save."""
_NUMBER = 4
"""Bytes of a value in a row that is sent."""
_BACKWARD = 2
"""A backward pass takes about this many times as long as the forward pass."""


class Rates(NamedTuple):
    """The rates of a kind of device."""

    read: float
    """Bytes of neighbours' rows that are aggregated per second."""
    flops: float
    """Floating-point operations of a dense product per second."""
    bin_s: float
    """Seconds of overhead of a bin, forward and backward."""
    message_s: float
    """CPU seconds that a message takes at each of its ends."""
    handled: float
    """Bytes of messages that a CPU handles per second at each end."""


RATES = {"cpu": Rates(4e9, 2e10, 3e-3, 6e-4, 1e9), "cuda": Rates(3e11, 1e13, 6e-4, 4e-4, 1e9)}
"""Rates by type of device, of common machines."""


def bins_by_cost(
    sizes: Sequence[LayerSize],
    received: Sequence[int],
    world: int,
    bandwidth: float,
    rates: Rates,
    costs: OrderCosts | None = None,
) -> int:
    """The number of bins. `received` are the rows of other workers that each layer reads in a step; `bandwidth` is in
    bytes per second.

    Operator `costs`, where known, replace the rates of what layers compute.
    """
    one_way = sum(_NUMBER * rows * size.width_in for rows, size in zip(received, sizes, strict=True))
    # In each pass a worker sends about as much as it receives.
    handling = 2 * one_way / rates.handled
    forward = sum(_layer_seconds(size, rates) if costs is None else _predicted_seconds(size, costs) for size in sizes)
    # A bin's rows go to every other worker, and so do its gradients; as many messages arrive.
    messages = 4 * (world - 1) * sum(rows > 0 for rows in received)
    alone = len(sizes) * rates.bin_s + messages * rates.message_s
    return best_number(forward + handling, _BACKWARD * forward + handling, one_way / bandwidth, alone)


def best_number(forward_s: float, backward_s: float, one_way_s: float, bin_s: float) -> int:
    """The best number of bins, given the compute seconds of both passes, the message seconds of each, and the overhead
    of one bin of every layer.
    """
    overlapping = min(forward_s, one_way_s) + min(backward_s, one_way_s)
    whole = forward_s + backward_s + 2 * one_way_s

    def seconds(bins: int) -> float:
        return whole - overlapping * (1 - 1 / bins) + bins * bin_s

    best = min(range(1, _MOST + 1), key=seconds)
    return best if seconds(best) < (1 - _GAIN) * seconds(1) else 1


def _predicted_seconds(size: LayerSize, costs: OrderCosts) -> float:
    """Predicted seconds of a layer's forward pass in the faster order."""
    counts = max(size.inputs, size.rows), size.rows, size.edges
    given = LayerSizes(*counts, size.width_in, size.width_out, input_gradient=False, training=False)
    return min(costs.aggregate_seconds(given), costs.transform_seconds(given))


def _layer_seconds(size: LayerSize, rates: Rates) -> float:
    narrower = min(size.width_in, size.width_out)
    products = 2 * size.rows * size.width_in * size.width_out / rates.flops
    return products + _NUMBER * size.edges * narrower / rates.read


# Which rows of other workers are computed here instead of received, chosen per vertex by predicted cost. A received row
# costs its bytes, and those of its gradient on the way back. A replica costs computation, and in later layers the rows
# that it reads and that are not here anyway, which change in every step; inputs of the first layer are fetched once and
# kept. Costs are those that a plan measured and wrote into the job, or follow from fixed rates: never from what this
# process measures, so that a restarted worker decides as before.

_READ = 4e9
"""Bytes of neighbours' rows that a core aggregates per second."""
_FLOPS = 2e10
"""Floating-point operations of a dense product per second on a core."""
_PRODUCTS = 2
"""Products of a row: forward, and backward to the weights. Inputs that are not learned have no gradients."""

Cheaper = Callable[[Array, Array], Array]
"""(numbers of neighbours, rows of these that would be received only for it) -> whether computing a row is cheaper."""


def replicate_where_cheaper(cut: CutLists, rank: int, cheaper: Sequence[Cheaper]) -> Replicate:
    """The decision for every vertex that is read; `cheaper` is given for every layer."""

    def chosen(level: int, halo: Rows, own: Rows) -> Rows:
        number = level - 1
        known = _read_by(cut, number, own) if number else {}
        found = {}
        for kind, vertices in halo.items():
            missing = np.zeros(len(vertices), np.int64)
            if number:
                missing = _missing(cut, rank, number, kind, vertices, known)
            found[kind] = cheaper[number](lengths_of(cut, number, kind, vertices), missing)
        return found

    return chosen


def cheaper_than(
    bandwidth: float, width_in: int, width_out: int, constant: bool, learned: bool, measured: Sequence[float] = ()
) -> Cheaper:
    """`bandwidth` is in bytes per second. Aggregates of `constant` inputs are known after the first step; `learned`
    inputs, and all rows between layers, have gradients. `measured` are seconds of a row and of an edge, both passes
    together; without them, fixed rates are used.
    """
    received, further = (2 * 4 * width / bandwidth for width in (width_out, width_in))
    reads = 0 if constant else 1 + learned
    row = (_PRODUCTS + learned) * 2 * width_in * width_out / _FLOPS + reads * 4 * width_in / _READ
    edge = reads * 4 * width_in / _READ
    if measured:
        row, edge = measured

    def cheaper(neighbours: Array, missing: Array) -> Array:
        found: Array = row + edge * neighbours + further * missing < received
        return found

    return cheaper


def _read_by(cut: CutLists, number: int, rows: Rows) -> Rows:
    """The vertices that some rows of a layer read, ascending."""
    found = {kind: np.empty(0, np.int64) for kind in cut.types}
    for kind, vertices in rows.items():
        for batch in batches_of(cut, number, kind, vertices):
            for source, ids in batch.vertices.items():
                found[source] = np.union1d(found[source], np.asarray(ids, np.int64))
    return found


def _missing(cut: CutLists, rank: int, number: int, kind: str, vertices: Array, known: Rows) -> Array:
    """For each of some vertices, the number of rows that a layer reads for it and that are neither own nor known,
    including its own row of the level below.
    """
    counts = [np.empty(0, np.int64)]
    for batch in batches_of(cut, number, kind, vertices):
        block = batch.blocks[0]
        absent = {}
        for source, ids in batch.vertices.items():
            ids = np.asarray(ids, np.int64)
            absent[source] = (cut.ranks(source, ids) != rank) & ~np.isin(ids, known[source])
        found = absent[kind][: batch.num_seeds].astype(np.int64)
        for edge_type, part in block.named(cut.relations).relations.items():
            found += np.bincount(part.destinations()[absent[edge_type[0]][part.indices]], minlength=part.num_dst)
        counts.append(found)
    return np.concatenate(counts)


_SHARE = 0.6
"""The share of a machine's total memory that its workers plan with: free memory differs from start to start, and bins
must not.
"""
_ITEM = {"float32": 4, "bfloat16": 2}


class SharedWholeExecution(SharedExecution):
    """Each worker computes the rows of its own vertices."""

    name = "whole-shared"

    def __init__(self, session: Session, group: WorkerGroup) -> None:
        super().__init__(session, LoadedExecution(session), group)
        reasons = EXCHANGES[session.job.exchange].reasons_against(session.job)
        if reasons:
            raise PenstockError(
                f"Workers cannot exchange rows with exchange {session.job.exchange}: {', '.join(reasons)}.",
                code="unsupported-combination",
            )
        self._workers: WholeWorkers = group.whole(session)
        self._prepared: list[SharedStep] | None = None
        self._known: list[Decision] = []
        """A plan's decisions for each step of an epoch."""
        self._exposure = Exposure()

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """Steps one at a time, which are made ready in the first round and kept."""
        self.prepare(schedule)
        assert self._prepared is not None
        work = RepeatedWork(schedule, start, recorder, PASSES)
        return OneByOne(work, ExchangedStep(self._session, self._workers, self._prepared, work, self._exposure))

    def prepare(self, schedule: Schedule) -> dict[str, Any]:
        """Divide the steps of an epoch into bins, with the other workers in the first round; how rows are exchanged."""
        job = self._session.job
        self._workers.begin_round()
        if self._prepared is None:
            steps = [each._replace(seeds=np.sort(each.seeds)) for each in first_epoch(schedule)]
            self._prepared = [self._prepare(place, each) for place, each in enumerate(steps)]
        exchanged = {"exchange": job.exchange, "pipeline": EXCHANGES[job.exchange].pipeline(job)}
        return {WHOLE_STEPS: [asdict(step.decision) for step in self._prepared], **exchanged}

    def follow(self, decided: Mapping[str, Any]) -> None:
        """Use the plan's decisions for each of this worker's steps."""
        self._known = read_decisions(decided.get(WHOLE_STEPS), layers_of(self._session.job))

    def facts(self) -> dict[str, Any]:
        """How the step was divided, and how long this worker has waited for others' rows."""
        facts, job, task = super().facts(), self._session.job, self._session.task
        if self._workers.cut.message_edges < self._session.graph.num_edges:
            facts |= {"supervised_edges": len(task.items), "message_edges": self._workers.cut.message_edges}
        if self._prepared:
            first = self._prepared[0]
            facts |= {
                "bins": [len(layer) for layer in first.tasks],
                "keep": first.decision.keep,
                "recomputed": not first.decision.retain,
                "exchange": job.exchange,
                "pipeline": EXCHANGES[job.exchange].pipeline(job),
                "halo_rows": sum(step.plan.halo_rows for step in self._prepared),
                "received_sums": sum(step.plan.received_sums for step in self._prepared),
                "replicated_rows": sum(step.plan.replicated_rows for step in self._prepared),
                "exposed_communication_s": round(self._exposure.seconds, 3),
            }
            if EXCHANGES[job.exchange].replicates:
                facts["replicated_by"] = "measured costs" if job.replicate_costs else "stated rates"
        return facts

    def _prepare(self, place: int, planned: Planned) -> SharedStep:
        session, job, workers = self._session, self._session.job, self._workers
        cut, layers = workers.cut, layers_of(job)
        names = self._readable(planned)
        rows = {kind: cut.numbers(kind, ids) for kind, ids in names.items()}
        wanted = {kind: cut.own(kind) if job.scope == "all" else np.sort(ids) for kind, ids in rows.items()}
        how = EXCHANGES[job.exchange]
        replicate = None
        if how.replicates:
            replicate = replicate_where_cheaper(cut, workers.rank, [self._cheaper(each) for each in range(layers - 1)])
        scale, all_vertices = how.source_scale(job), job.scope == "all"
        levels = find_levels(cut, workers.lists, f"step-{place}", layers, wanted, all_vertices, replicate, scale)
        decision = self._known[place] if place < len(self._known) else self._decide(levels)
        by_bin = how.pipeline(job) in ("intra", "both")
        plan = make_cut_plan(cut, workers.lists, f"step-{place}", levels, decision.bins, by_bin)
        loss_rows = LossRowSource(session, planned, cut, workers.rank, workers.world, names)
        return SharedStep(session, cut, plan, decision, loss_rows, rows)

    def _cheaper(self, layer: int) -> Cheaper:
        """Whether rows of a layer are cheaper to compute than to receive."""
        inputs, job, bandwidth = self._session.inputs, self._session.job, self._workers.bandwidth
        measured = job.replicate_costs[2 * layer : 2 * layer + 2]
        if layer:
            return cheaper_than(bandwidth, job.hidden, job.hidden, False, True, measured)
        learned = bool(inputs.tables)
        constant = not learned and not job.input_dropout
        return cheaper_than(bandwidth, max(inputs.widths.values()), job.hidden, constant, learned, measured)

    def _readable(self, planned: Planned) -> Rows:
        """Original numbers of this worker's vertices whose rows the losses of a step may read,
        ascending by node type.
        """
        cut, found = self._workers.cut, {}
        for kind, vertices in self._session.task.readable(planned.seeds).items():
            found[kind] = vertices[cut.ranks(kind, cut.numbers(kind, vertices)) == self._workers.rank]
        return found

    def _decide(self, levels: list[LevelRows]) -> Decision:
        """The decision, from constant inputs only: a restarted worker must divide its rows as before."""
        session, job = self._session, self._session.job
        device, on_gpu = session.inputs.device, session.inputs.on_gpu
        room = int(_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / self._workers.beside)
        free = room
        if on_gpu:
            import torch

            free = int(job.device_share * torch.cuda.get_device_properties(device).total_memory)
        sizes, item = _sizes(session, levels), _ITEM[job.keep_type]
        decision = decide(sizes, job.bins, job.keep, item, free, room, on_gpu, overlapping=True)
        if job.bins or self._workers.world == 1 or EXCHANGES[job.exchange].pipeline(job) == "none":
            return decision
        # Inputs are received once, and then kept.
        received = [0, *(each.received for each in levels[1:-1])]
        costs = None if on_gpu else (job.order_costs or {}).get("cpu")
        world, bandwidth = self._workers.world, self._workers.bandwidth
        several = bins_by_cost(sizes, received, world, bandwidth, RATES[device.type], costs)
        return replace(decision, bins=[max(number, several) for number in decision.bins])


def _sizes(session: Session, levels: list[LevelRows]) -> list[LayerSize]:
    layers, widest, hidden = len(levels) - 1, max(session.inputs.widths.values()), session.job.hidden
    of_edges = edge_numbers(session.job.model, session.inputs.edges, hidden)
    sizes = []
    for number in range(layers):
        below, above = levels[number], levels[number + 1]
        given, read = _count(above.computed), _count(below.computed) + below.received
        edges = sum(int(loads.sum()) for loads in above.loads.values()) - given
        out = session.task.out if number == layers - 1 and session.job.jump == "none" else hidden
        sizes.append(LayerSize(given, read, edges, hidden if number else widest, out, *of_edges))
    return sizes


def _count(rows: dict[str, Array]) -> int:
    return sum(map(len, rows.values()))
