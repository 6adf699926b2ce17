"""The steps of a cluster's workers, done one after the other in one process.

Every worker has a part of a cut graph and computes its share of each batch, and the gradients are summed before the
optimiser's step, as on a cluster (`train.execution.loaded`). Batches, shares, explanations and filled columns come from
the code that clusters run. Losses differ from a cluster's in rounding alone
(tests/benchmarks/test_in_one_process.py). What is saved is starting a dozen processes for seconds of training.
"""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from penstock.cluster.worker.batch_source import SeedSplit, vertex_share
from penstock.cluster.worker.explained.explainer_process import Explainer
from penstock.cluster.worker.explained.explanation_graph import FoundRowMasks, PooledRows
from penstock.cluster.worker.explained.explanations import chosen_rows, described_model, halo_of, mean_row
from penstock.graph.arrays import Array
from penstock.graph.hashing import seed_for
from penstock.nn.drop import dropping
from penstock.partition import Partition, open_partition
from penstock.pipeline.schedule import Planned, Schedule
from penstock.sampling.explained import ExplainedLists, ReachedParts
from penstock.sampling.explanation import SamplingExplanation, largest_columns, scores_of
from penstock.sampling.neighbours import NeighbourSampler
from penstock.sampling.parts import OwnedPart, parted_lists
from penstock.sampling.parts.homogeneous import share_of
from penstock.sampling.sampler_table import SAMPLERS
from penstock.train.build import make_session
from penstock.train.job import Job, job_of
from penstock.train.run_context import run_context
from penstock.train.session import Session


@dataclass(frozen=True)
class Remote:
    """What is done with the vertices and rows of other workers' parts.

    `explained`: as sampler explained does, with masks that are found (`masks="found"`), or with all remote vertices
    alike and columns at random (`masks="random"`), which sends as many bytes. `columns`: other samplers read this share
    of the columns of remote rows, others with every batch; 1: all.
    """

    explained: bool = False
    masks: str = "found"
    columns: float = 1.0


NOTHING_REMOTE = Remote()


def trained(
    fields: Mapping[str, Any], parts: Path | None, remote: Remote = NOTHING_REMOTE, from_step: int = 0
) -> dict[str, Any]:
    """Train a job of `fields` and internals; its losses, and the test metric of the best weights by validation.

    Weights count from step `from_step` on. `parts` is a partition with one part for each worker; None: one worker that
    has everything. The job's own sampler is neighbour where `remote.explained`: the fields of explanations count all
    the same.
    """
    explain = {name: value for name, value in fields.items() if name.startswith("explain_")}
    own = {name: fields[name] for name in ("remote_bias", "feature_share") if name in fields}
    sampler = "explained" if remote.explained else fields.get("sampler", "neighbour")
    options = job_of({**fields, "sampler": sampler})
    job = job_of({name: value for name, value in fields.items() if name not in explain | own})
    with run_context(job):
        session = make_session(job)
        workers = Workers.alone(session) if parts is None else Workers.of(session, options, parts, remote)
        return _trained(session, workers, from_step)


def _trained(session: Session, workers: "Workers", from_step: int) -> dict[str, Any]:
    job, task = session.job, session.task
    schedule = Schedule(task.items, task.batch_size, job.seed, job.epochs)
    losses, best, test, best_step = list[float](), -np.inf, 0.0, 0
    every = max(1, job.evaluate_every)
    for planned in schedule.from_position():
        session.optimiser.zero_grad(set_to_none=True)
        loss = sum(_learn(session, *each) for each in workers.batches(planned, len(losses)))
        session.optimiser.step()
        losses.append(loss)
        workers.step_done(len(losses))
        epoch = planned.key.epoch + 1
        if planned.last and len(losses) >= from_step and (epoch % every == 0 or epoch == job.epochs):
            scores = session.evaluate(["val", "test"])
            value = next(iter(scores["val"].values()))
            if value > best:
                best, test, best_step = value, next(iter(scores["test"].values())), len(losses)
    counted = {"remote_rows": workers.remote_rows, "rows": workers.rows}
    return {"test": test, "best_step": best_step, "losses": losses, **counted}


def _learn(session: Session, batch: Any, x: torch.Tensor, whole: int) -> float:
    """The gradients of one worker's share are added to those that are there; its part of the batch's loss."""
    key = batch.planned_key.purpose("dropout")
    session.task.label(batch)
    batch.labels = torch.from_numpy(batch.labels)
    with session.drawing(key), dropping(key, batch.row_names):
        loss = session.task.loss(session.encode(batch, {batch.node_type: x}), batch)
    part = loss * (1.0 if batch.seed_weights is not None else batch.num_seeds / max(1, whole))
    session.backward(part)
    return float(part.detach())


class Workers:
    """All workers of a cut graph of one type: their shares of batches, and the rows that they read."""

    def __init__(self, session: Session, options: Job, partition: Partition | None, remote: Remote) -> None:
        self._session, self._options, self._partition, self._remote = session, options, partition, remote
        (nodes,) = session.graph.nodes.values()
        self._x = np.asarray(nodes.fields[session.job.features])
        self.rows = self.remote_rows = 0
        self._joint = SAMPLERS[session.job.sampler].joint
        self._world = 1 if partition is None else partition.parts
        self._weights: dict[str, torch.Tensor] = {}
        if partition is None:
            return
        shares = [1 / self._world] * self._world
        original, book = partition.original(), partition.book
        self._original, self._new = original, np.empty(len(original), np.int64)
        self._new[original] = np.arange(len(original))
        bounds = book.bounds(None)
        self._part_of = np.searchsorted(bounds, self._new, side="right") - 1
        items = session.task.items
        self._splits = (
            [] if self._joint else [SeedSplit(items, self._new[items], shares, p) for p in range(self._world)]
        )
        self._shares = [vertex_share(shares, p) for p in range(self._world)]
        self._means = np.stack([self._x[self._part_of == p].mean(0, dtype=np.float64) for p in range(self._world)])
        if remote.explained:
            self._explained = ExplainedWorkers(session, options, partition, self._x, remote.masks)

    @classmethod
    def alone(cls, session: Session) -> "Workers":
        """One worker, for whom nothing is remote."""
        return cls(session, session.job, None, NOTHING_REMOTE)

    @classmethod
    def of(cls, session: Session, options: Job, parts: Path, remote: Remote) -> "Workers":
        """One worker for each part."""
        return cls(session, options, open_partition(parts), remote)

    def batches(self, planned: Planned, step: int) -> Iterator[tuple[Any, torch.Tensor, int]]:
        """Of every worker: its share of a batch, the rows that the share reads, and the seeds of the whole batch."""
        drawn = self._session.task.sample(planned) if self._joint or self._world == 1 else None
        for worker in range(self._world):
            columns, batch = None, drawn
            if self._world > 1:
                batch, columns = self._share(planned, drawn, worker, step)
            assert batch is not None
            batch.planned_key = planned.key
            whole = batch.whole if batch.whole is not None else len(planned.seeds)
            yield batch, self._read(batch, worker, columns), whole

    def step_done(self, step: int) -> None:
        """So many steps are done: explain where that is due."""
        if self._world > 1 and self._remote.explained and step % self._options.explain_every == 0:
            self._explained.explain(step // self._options.explain_every)

    def _share(self, planned: Planned, drawn: Any, worker: int, step: int) -> tuple[Any, Array | None]:
        """A worker's share of a batch, and the columns that its remote rows are read with; None: all."""
        if drawn is not None:
            share = self._shares[worker]
            places = np.arange(drawn.num_seeds) if share is None else share(self._new[drawn.seeds[drawn.node_type]])
            batch = share_of(drawn, places)
        else:
            mine = self._splits[worker].share(planned)
            explanation = self._explained.at(step, worker) if self._remote.explained else None
            if explanation is not None:
                return self._explained.sample(explanation, mine, worker), next(iter(explanation.columns.values()))
            batch = self._session.task.sample(mine)
        width = self._x.shape[1]
        columns = None
        if self._remote.columns < 1:
            lots = np.random.default_rng([self._session.job.seed, step]).random(width)
            columns = largest_columns(lots, self._remote.columns)
        return batch, columns

    def _read(self, batch: Any, worker: int, columns: Array | None) -> torch.Tensor:
        """The rows of a share; remote ones have part means in all but some columns."""
        vertices = batch.names[batch.node_type] if batch.names is not None else batch.vertices[batch.node_type]
        x = self._x[vertices].astype(np.float32)
        if self._world > 1:
            parts = self._part_of[vertices]
            far = np.flatnonzero(parts != worker)
            self.rows, self.remote_rows = self.rows + len(parts), self.remote_rows + len(far)
            if columns is not None:
                absent = np.setdiff1d(np.arange(x.shape[1]), columns)
                means = self._means[:, absent].astype(self._x.dtype).astype(np.float32)
                x[np.ix_(far, absent)] = means[parts[far]]
        scale = self._session.inputs.scale
        rows = torch.from_numpy(x)
        return rows if scale is None else scale(rows)


class ExplainedWorkers:
    """The explanations of all workers, and their draws."""

    def __init__(self, session: Session, options: Job, partition: Partition, x: Array, masks: str) -> None:
        self._session, self._options, self._partition, self._masks = session, options, partition, masks
        self._original = partition.original()
        self._x = x
        ((self._name, _),) = session.graph.nodes.items()
        owned = {part: OwnedPart.of(partition, part) for part in range(partition.parts)}
        field = f"{self._name}/{session.job.features}"
        self._new = np.empty(len(self._original), np.int64)
        self._new[self._original] = np.arange(len(self._original))
        lists = parted_lists(partition, local=owned, channels=_nobody)
        self._plain = NeighbourSampler.over(lists.readable, session.job.fanouts, session.job.needs_totals)
        self._lists = lists.readable.relations
        self._halos, self._local, self._reached = [], [], []
        for part in range(partition.parts):
            here: Any = SimpleNamespace(partition=partition, graphs={part: partition.part(part)})
            self._halos.append(halo_of(here))
            self._local.append(mean_row(here, field))
            self._reached.append(_AllHere(partition.book, owned, _nobody, part=part))
        about = {**described_model(session), "steps": options.explain_steps, "loss": options.explain_loss}
        self._explainer = Explainer(about, io.BytesIO())
        self._found: dict[int, list[SamplingExplanation]] = {}
        self._samplers: dict[tuple[int, int], NeighbourSampler] = {}

    def at(self, step: int, worker: int) -> SamplingExplanation | None:
        """What is in force for a worker's share of the batch of a step, counted from 0."""
        version = max(0, (step - self._options.explain_delay) // self._options.explain_every)
        return self._found[version][worker] if version else None

    def explain(self, version: int) -> None:
        """Explain the model as it is now, for every worker."""
        weights = {name: each.detach().clone() for name, each in self._session.model.state_dict().items()}
        self._found = {each: found for each, found in self._found.items() if each >= version - 2}
        self._samplers = {each: found for each, found in self._samplers.items() if each[0] >= version - 2}
        with _without_onednn():
            self._found[version] = [self._one(version, part, weights) for part in range(self._partition.parts)]

    def sample(self, explanation: SamplingExplanation, mine: Planned, worker: int) -> Any:
        """A worker's share of a batch, drawn as an explanation says."""
        named = explanation.version, worker
        if named not in self._samplers:
            bias, reached = self._options.remote_bias, self._reached[worker]
            drawn = {
                kind: ExplainedLists(kind, reached, plain, explanation, bias) for kind, plain in self._lists.items()
            }
            self._samplers[named] = self._plain.drawing_from(drawn)
        batch = self._samplers[named].sample(self._new[mine.seeds], mine.key)
        batch.seeds = {self._name: mine.seeds}
        return batch

    def _one(self, version: int, part: int, weights: Mapping[str, torch.Tensor]) -> SamplingExplanation:
        rows = chosen_rows(self._halos[part], self._options.explain_rows, self._options.seed, version)
        (vertices,) = rows.values()
        seed = seed_for(self._options.seed, "explanation {}", version)
        if self._masks == "random":
            lots = np.random.default_rng([seed, part]).random(self._x.shape[1])
            found = FoundRowMasks(np.ones(len(vertices)), lots)
        else:
            both = np.concatenate([self._local[part][None], self._x[self._original[vertices]].astype(np.float32)])
            scale = self._session.inputs.scale
            scaled = torch.from_numpy(both) if scale is None else scale(torch.from_numpy(both))
            found = self._explainer.masks(weights, {self._name: PooledRows(scaled[0], scaled[1:])}, seed)[self._name]
        columns = largest_columns(found.columns, self._options.feature_share)
        return SamplingExplanation(version, {self._name: scores_of(vertices, found.rows)}, {self._name: columns})


@dataclass(frozen=True)
class _AllHere(ReachedParts):
    """All parts are in this process, and one of them is a worker's home."""

    part: int = 0

    def home(self, node_type: str) -> Array:
        """The range of the vertices of the worker's own part."""
        return np.array([self.book.range(self.part, node_type)], np.int64)


@contextmanager
def _without_onednn() -> Iterator[None]:
    """As the explainer process computes."""
    switch: Any = torch.backends.mkldnn
    before = switch.enabled
    switch.enabled = False
    try:
        yield
    finally:
        switch.enabled = before


def _nobody(part: int) -> Any:
    raise AssertionError(f"part {part} is in this process")
