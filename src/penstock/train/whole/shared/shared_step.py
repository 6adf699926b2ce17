"""A worker's part of a step made ready: its bins, the positions of rows that losses read, and inputs that are kept."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.nn.norm import BatchNorm
from penstock.pipeline.batch_rows import EdgeRows, as_tensors
from penstock.pipeline.schedule import Planned
from penstock.sampling.block import BatchKey, MiniBatch
from penstock.sampling.device.block import block_on
from penstock.train.session import Session
from penstock.train.whole.levels import KeptLevel, read_in_place
from penstock.train.whole.memory import Decision
from penstock.train.whole.prepared import PreparedBin, moved, normalised_layers, prepared_bin, stored_level
from penstock.train.whole.shared.cut_plan import CutBin, CutLevel, CutPlan
from penstock.train.whole.shared.interfaces import CutLists, Rows
from penstock.train.whole.shared.partial_sums import RowLists, SentSums

# The rows that every worker's part of the loss reads: its own, and for tasks on edges those at the other ends, too.
# Every worker knows all examples of a step, and so which of its rows another one reads, without a message.

Places = dict[str, Tensor]


class LossRows(NamedTuple):
    """What the loss reads in one step of one epoch, on one worker. Rows are given by node type."""

    batch: MiniBatch
    """This worker's examples, with their labels where the model is computed."""
    share: float
    """The factor of the task's loss of them, so that all workers' parts add up to the mean."""
    sent: list[Places]
    """By rank, which of this worker's rows a worker's loss reads: positions among the rows that losses may read."""
    read: list[Places]
    """By rank, the positions of that worker's rows among the batch's seeds, in the same order."""

    only_own: bool = False
    """Whether no loss reads another worker's rows, and this one's reads all its own in order."""

    @property
    def num_examples(self) -> int:
        """The number of vertices or edges of this worker."""
        return self.batch.num_seeds if self.batch.links is None else len(self.batch.links)


class LossRowSource:
    """The examples of one step, which are the same in every epoch, or drawn anew in each."""

    def __init__(self, session: Session, planned: Planned, cut: CutLists, rank: int, world: int, names: Rows) -> None:
        """`names` are the original numbers of this worker's rows that losses may read, ascending by node type."""
        self._session, self._planned, self._cut, self._names = session, planned, cut, names
        self._rank, self._world = rank, world
        self._fixed = None if session.task.redraws else self._made(planned)

    def of(self, key: BatchKey) -> LossRows:
        """The rows that the step reads in the key's epoch."""
        return self._made(self._planned._replace(key=key)) if self._fixed is None else self._fixed

    def _made(self, planned: Planned) -> LossRows:
        task, device = self._session.task, self._session.inputs.device
        divided = task.divided(planned, self._owners, self._world)
        mine = divided[self._rank]
        task.label(mine)
        mine.labels = moved(as_tensors(mine.labels), device)
        # The loss of a share of edges is its part of the mean; that of vertices is the mean over the share.
        share = mine.num_seeds / len(planned.seeds) if mine.links is None else 1.0
        sent = [self._sent(theirs.seeds, device) for theirs in divided]
        read = [self._of_owner(rank, mine.seeds, device) for rank in range(self._world)]
        others = any(sent[rank] or read[rank] for rank in range(self._world) if rank != self._rank)
        as_they_stand = all(np.array_equal(self._names.get(kind, ()), rows) for kind, rows in mine.seeds.items())
        return LossRows(mine, share, sent, read, as_they_stand and not others)

    def _sent(self, seeds: Rows, device: torch.device) -> Places:
        places = {
            kind: np.searchsorted(self._names[kind], rows[self._owners(kind, rows) == self._rank])
            for kind, rows in seeds.items()
            if kind in self._names
        }
        return _filled(places, device)

    def _of_owner(self, rank: int, seeds: Rows, device: torch.device) -> Places:
        return _filled({kind: np.flatnonzero(self._owners(kind, rows) == rank) for kind, rows in seeds.items()}, device)

    def _owners(self, kind: str, vertices: Array) -> Array:
        return self._cut.ranks(kind, self._cut.numbers(kind, vertices))


def _filled(places: Rows, device: torch.device) -> Places:
    return {kind: torch.from_numpy(rows).to(device) for kind, rows in places.items() if len(rows)}


# The bins of a step on one worker with what they wait for, forward and backward.


@dataclass(eq=False)
class BinTask(PreparedBin):
    """A bin where it is computed, and its dependencies on other bins and on messages."""

    vertices: Rows = field(default_factory=dict)
    """The numbers of its inputs in the partitioned graph."""
    layer: int = 0
    place: int = 0
    """Its number in the layer."""
    below: frozenset[int] = frozenset()
    """Bins of the layer below whose rows it reads."""
    halo: frozenset[int] = frozenset()
    """Groups received for the level below that it reads, by position in the level's list."""
    above: frozenset[int] = frozenset()
    """Bins of the layer above that read its rows."""
    readers: tuple[int, ...] = ()
    """Groups sent of its level that hold rows of it, by position in the level's list: by rank, then number."""


def make_tasks(plan: CutPlan, device: torch.device, edges: EdgeRows) -> list[list[BinTask]]:
    """For every layer, its bins in order; `edges` reads the edge fields of each bin."""
    made = [
        [_task(work, number, place, device, edges) for place, work in enumerate(layer)]
        for number, layer in enumerate(plan.bins)
    ]
    for number, layer in enumerate(made):
        level = plan.levels[number]
        for task in layer:
            if number:
                task.below, task.halo = _sources(task, plan.bins[number - 1], level)
                for place in task.below:
                    made[number - 1][place].above |= {task.place}
            sent = plan.levels[number + 1].sent
            task.readers = tuple(place for place, group in enumerate(sent) if task.place in group.computed_by)
    return made


def _task(work: CutBin, layer: int, place: int, device: torch.device, edges: EdgeRows) -> BinTask:
    return BinTask(**vars(prepared_bin(work, device, edges)), vertices=work.vertices, layer=layer, place=place)


def _sources(task: BinTask, below: list[CutBin], level: CutLevel) -> tuple[frozenset[int], frozenset[int]]:
    bins: set[int] = set()
    groups: set[int] = set()
    for kind, rows in task.inputs.items():
        assert rows is not None
        own = rows < level.computed[kind]
        bins |= _which(rows[own], [(place, work.rows[kind]) for place, work in enumerate(below) if kind in work.rows])
        parts = [(place, group.rows[kind]) for place, group in enumerate(level.received) if kind in group.rows]
        groups |= _which(rows[~own], parts)
    return frozenset(bins), frozenset(groups)


def _which(rows: Array, parts: list[tuple[int, slice]]) -> set[int]:
    """Which of the consecutive parts hold any of some rows."""
    if not len(rows):
        return set()
    ends = np.array([some.stop for _, some in parts])
    return {parts[place][0] for place in np.unique(np.searchsorted(ends, rows, "right")).tolist()}


class PreparedSums(NamedTuple):
    """Rows and lists of `SentSums` where they are computed."""

    added: tuple[Tensor, Any]
    returned: dict[int, tuple[Tensor, Any]]


class SharedStep:
    """What one step needs on one worker in every epoch."""

    def __init__(
        self,
        session: Session,
        cut: CutLists,
        plan: CutPlan,
        decision: Decision,
        loss_rows: LossRowSource,
        rows: Rows,
    ) -> None:
        """`rows` are this worker's vertices whose rows losses may read, by their numbers in the cut graph."""
        self._session, self.plan, self.decision, self.loss_rows = session, plan, decision, loss_rows
        self.device, self._cut = session.inputs.device, cut
        self.tasks = make_tasks(plan, self.device, session.inputs.edges)
        for number, tasks in enumerate(self.tasks[1:], 1):
            last = number == plan.layers - 1 and session.job.jump == "none"
            read_in_place(session, tasks, session.task.out if last else session.job.hidden)
        self.sent_rows = [[self._moved(group.rows) for group in level.sent] for level in plan.levels]
        self.returned_rows = [[self._moved(group.rows) for group in level.returned] for level in plan.levels]
        self.sent_sums = [
            [{kind: _prepared_sums(sums, self.device) for kind, sums in group.sums.items()} for group in level.sent]
            for level in plan.levels
        ]
        self.seeds = [_places(level.vertices, rows, self.device) for level in plan.levels[1:]]
        model: Any = session.model
        self.constant: dict[Any, Any] | None = None if model.options.input_dropout or not decision.retain else {}
        self.normalises = normalised_layers(session, plan.layers)
        self.layer_parameters = [
            [each for each in model.layer_parameters(number) if each.requires_grad] for number in range(plan.layers)
        ]
        self.norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
        self._group_names: dict[tuple[int, bool, int, str], Array] = {}
        self._returned_names: dict[tuple[int, int, str], Array] = {}
        self._kept_inputs: dict[BinTask, dict[str, Tensor]] = {}
        self._all_inputs: dict[str, Tensor] = {}

    def _moved(self, rows: Rows) -> Places:
        return {kind: torch.from_numpy(some).to(self.device) for kind, some in rows.items()}

    def level(self, number: int) -> KeptLevel:
        """Storage for a level's rows."""
        counts, last = self.plan.levels[number].counts, number == self.plan.layers
        return stored_level(self._session, counts, self.decision.keep, last)

    def stored_inputs(self, task: BinTask) -> dict[str, Tensor]:
        """A first-layer bin's features, fetched once and kept: by bin where memory allows, else each row once."""
        found = self._kept_inputs.get(task)
        if found is None:
            stored = [kind for kind in task.vertices if kind not in self._session.inputs.tables]
            found = {kind: self._input_rows(kind, task) for kind in stored}
            if self.decision.retain:
                self._kept_inputs[task] = found
        return dict(found)

    def _input_rows(self, kind: str, task: BinTask) -> Tensor:
        if self.decision.retain:
            return self._session.inputs.pull(kind, task.vertices[kind])
        if kind not in self._all_inputs:
            self._all_inputs[kind] = self._session.inputs.pull(kind, self.plan.levels[0].vertices[kind]).cpu()
        rows = task.inputs[kind]
        assert rows is not None
        return self._all_inputs[kind].index_select(0, torch.from_numpy(rows)).to(self.device)

    def group_names(self, level: int, sent: bool, place: int, kind: str) -> Array:
        """Original numbers of the vertices of one type in a group that is sent or received."""
        key = level, sent, place, kind
        if key not in self._group_names:
            known, rows = self.plan.levels[level], slice(0)
            found: Any = known.sent[place].rows[kind] if sent else known.received[place].rows.get(kind, rows)
            self._group_names[key] = self._cut.names(kind, known.vertices[kind][found])
        return self._group_names[key]

    def returned_names(self, level: int, place: int, kind: str) -> Array:
        """Original numbers of the vertices of one type whose gradients are sent back together."""
        key = level, place, kind
        if key not in self._returned_names:
            known = self.plan.levels[level]
            self._returned_names[key] = self._cut.names(kind, known.vertices[kind][known.returned[place].rows[kind]])
        return self._returned_names[key]


def _prepared_sums(sums: SentSums, device: torch.device) -> PreparedSums:
    def prepared(found: RowLists) -> tuple[Tensor, Any]:
        return torch.from_numpy(found.rows).to(device), block_on(found.lists, device)

    return PreparedSums(prepared(sums.added), {place: prepared(found) for place, found in sums.returned.items()})


def _places(vertices: Rows, rows: Rows, device: torch.device) -> dict[str, Tensor]:
    """The positions of some vertices in a level."""
    found = {}
    for kind, ids in rows.items():
        order = np.argsort(vertices[kind], kind="stable")
        found[kind] = torch.from_numpy(order[np.searchsorted(vertices[kind][order], ids)]).to(device)
    return found
