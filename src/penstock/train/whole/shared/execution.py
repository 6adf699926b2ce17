"""The execution mode of sampler `whole` among workers."""

import os
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.pipeline.clock import Recorder
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.train.batch_source import layers_of
from penstock.train.execution.loaded import LoadedExecution
from penstock.train.execution.shared import SharedExecution
from penstock.train.execution.worker_group import WorkerGroup
from penstock.train.session import Session
from penstock.train.steps import Pause, Steps
from penstock.train.whole.memory import Decision, LayerSize, decide, edge_numbers
from penstock.train.whole.schedule import first_epoch
from penstock.train.whole.shared.bin_choice import RATES, bins_by_cost
from penstock.train.whole.shared.cut_plan import make_cut_plan
from penstock.train.whole.shared.exchanges import EXCHANGES
from penstock.train.whole.shared.interfaces import Rows, WholeWorkers
from penstock.train.whole.shared.levels import LevelRows, find_levels
from penstock.train.whole.shared.loss_rows import LossRowSource
from penstock.train.whole.shared.replication import Cheaper, cheaper_than, replicate_where_cheaper
from penstock.train.whole.shared.shared_step import SharedStep
from penstock.train.whole.shared.steps import Exposure, SharedWholeSteps

_SHARE = 0.6
"""Of a machine's memory, what its workers plan with: what is free changes from start to start, and bins must not."""
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
        self._exposure = Exposure()

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """One at a time. The plan is made with the other workers in the first round, and kept."""
        self._workers.begin_round()
        if self._prepared is None:
            steps = [each._replace(seeds=np.sort(each.seeds)) for each in first_epoch(schedule)]
            self._prepared = [self._prepare(place, each) for place, each in enumerate(steps)]
        way = self._session, self._workers, self._prepared, schedule, start, recorder, self._exposure
        return SharedWholeSteps(*way)

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
        decision = self._decide(levels)
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
        """Original numbers of this worker's vertices whose rows losses of a step may read, ascending by node type."""
        cut, found = self._workers.cut, {}
        for kind, vertices in self._session.task.readable(planned.seeds).items():
            found[kind] = vertices[cut.ranks(kind, cut.numbers(kind, vertices)) == self._workers.rank]
        return found

    def _decide(self, levels: list[LevelRows]) -> Decision:
        """From what never changes: a worker that is started again must divide its rows as before."""
        session, job = self._session, self._session.job
        device = session.inputs.device
        room = int(_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / self._workers.beside)
        free = room
        if device.type == "cuda":
            import torch

            free = int(job.device_share * torch.cuda.get_device_properties(device).total_memory)
        sizes, item = _sizes(session, levels), _ITEM[job.keep_type]
        decision = decide(sizes, job.bins, job.keep, item, free, room, device.type == "cuda", overlapping=True)
        if job.bins or self._workers.world == 1 or EXCHANGES[job.exchange].pipeline(job) == "none":
            return decision
        # Inputs are received once, and then kept.
        received = [0, *(each.received for each in levels[1:-1])]
        costs = (job.order_costs or {}).get("cpu") if device.type == "cpu" else None
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
