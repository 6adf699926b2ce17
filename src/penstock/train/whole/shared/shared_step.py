"""A worker's part of a step made ready: its bins, the places of rows that losses read, and inputs that are kept."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.nn.norm import BatchNorm
from penstock.sampling.device.block import on_device
from penstock.train.session import Session
from penstock.train.whole.levels import KeptLevel
from penstock.train.whole.memory import Decision
from penstock.train.whole.prepared import normalised_layers
from penstock.train.whole.rows_in_place import read_in_place
from penstock.train.whole.shared.cut_plan import CutPlan
from penstock.train.whole.shared.interfaces import CutLists, Rows
from penstock.train.whole.shared.loss_rows import LossRowSource
from penstock.train.whole.shared.sent_sums import RowLists, SentSums
from penstock.train.whole.shared.tasks import BinTask, make_tasks


class PreparedSums(NamedTuple):
    """Rows and lists of `SentSums` where they are computed."""

    added: tuple[Tensor, Any]
    returned: dict[int, tuple[Tensor, Any]]


class SharedStep:
    """What every epoch needs for one step on one worker."""

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
        self.sent_rows = [
            [
                {kind: torch.from_numpy(rows).to(self.device) for kind, rows in group.rows.items()}
                for group in level.sent
            ]
            for level in plan.levels
        ]
        self.returned_rows = [
            [
                {kind: torch.from_numpy(rows).to(self.device) for kind, rows in group.rows.items()}
                for group in level.returned
            ]
            for level in plan.levels
        ]
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
        self._computed = next(session.learned.parameters()).dtype
        self._dtype = torch.bfloat16 if session.job.keep_type == "bfloat16" else self._computed

    def level(self, number: int) -> KeptLevel:
        """Room for a level's rows. The last one is read at once, by the loss."""
        last = number == self.plan.layers
        where = "device" if last else self.decision.keep
        dtype = self._computed if last else self._dtype
        counts, folder = self.plan.levels[number].counts, self._session.temporary_folder
        return KeptLevel(counts, where, dtype, self.device, folder, self._computed)

    def stored_inputs(self, task: BinTask) -> dict[str, Tensor]:
        """The features that a bin of the first layer reads: fetched once and kept.

        Bin by bin where memory allows, as layers read them; else every row once on the host.
        """
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
        lists = found.lists if device.type == "cpu" else on_device(found.lists, device)
        return torch.from_numpy(found.rows).to(device), lists

    return PreparedSums(prepared(sums.added), {place: prepared(found) for place, found in sums.returned.items()})


def _places(vertices: Rows, rows: Rows, device: torch.device) -> dict[str, Tensor]:
    """Where some vertices stand in a level."""
    found = {}
    for kind, ids in rows.items():
        order = np.argsort(vertices[kind], kind="stable")
        found[kind] = torch.from_numpy(order[np.searchsorted(vertices[kind][order], ids)]).to(device)
    return found
