"""One of several workers: its round, its share of a batch, and the collective operations."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch.nn import Parameter

from penstock.cluster.member import Member
from penstock.cluster.rendezvous import Round
from penstock.cluster.worker.batch_norm import shared_batch, summing
from penstock.cluster.worker.batch_source import SeedSplit
from penstock.cluster.worker.collectives import CollectiveGroup, WireCollective
from penstock.cluster.worker.cut_graph import Parts
from penstock.cluster.worker.explained.explanations import WorkerExplanations
from penstock.cluster.worker.inputs import PartedInputs
from penstock.cluster.worker.layerwise import PartedPlan
from penstock.cluster.worker.whole import ClusterWholeWorkers, RowInbox
from penstock.errors import PenstockError
from penstock.nn.norm import SharedBatch, normalising
from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import Planned
from penstock.train.layerwise.inference import Inference
from penstock.train.layerwise.plan import LayerPlan
from penstock.train.run_files.checkpoints import TrainState
from penstock.train.session import Session
from penstock.train.steps.group import DeviceSums, PlaceWhole, RegroupError

_AGAIN = 0.01
"""Seconds before the controller is asked again."""


class ReductionMethod(Protocol):
    """How the workers of one round agree on the weights after a step."""

    group: CollectiveGroup | None
    """The group by which they sum everything else; None: there is one worker."""

    def step(self, session: Session, loss: float, asked: bool) -> tuple[float, bool]:
        """A step with all workers' gradients: returns the batch's loss, and whether any worker was asked to stop."""

    def start_sum(self, parameters: Sequence[Parameter]) -> None:
        """Begin to sum some gradients before the step, if that can overlap with other work."""

    def device_sums(self) -> DeviceSums | None:
        """How captured steps sum their gradients; None where servers make the step."""

    def gather_optimiser(self, session: Session) -> None:
        """Fetch the optimiser's state if it is kept elsewhere."""

    def close(self) -> None:
        """Release what was held for a round."""


class ClusterWorkerGroup:
    """The `train.execution.shared.WorkerGroup` of a cluster run."""

    def __init__(self, member: Member, parts: Parts, split: SeedSplit) -> None:
        self._member, self._parts, self._split = member, parts, split
        self.rank, self.world = member.setup.task.rank, member.setup.layout.world
        self.generation = 0
        self.reduction: ReductionMethod | None = None
        self.collective = WireCollective(member)
        self.rows = RowInbox(member)
        self.explained: WorkerExplanations | None = None
        """This worker's explanations, if the run makes any."""
        self._stopping = False
        self._evaluated = 0

    def share(self, planned: Planned) -> Planned:
        return self._split.share(planned)

    def reduce_and_step(self, session: Session, loss: float) -> float:
        assert self.reduction is not None
        self._share_figures(session)
        total, stopping = self.reduction.step(session, loss, self.was_asked_to_stop())
        self.count_steps(session, 1, stopping)
        return total

    def device_sums(self) -> DeviceSums | None:
        """How captured steps sum their gradients, by the round's reduction."""
        assert self.reduction is not None
        return self.reduction.device_sums()

    def count_steps(self, session: Session, steps: int, stopping: bool) -> None:
        """Count steps; owners of embeddings learn with the next pull how many were done."""
        assert isinstance(session.inputs, PartedInputs)
        session.inputs.step += steps
        self._stopping = stopping

    def was_asked_to_stop(self) -> bool:
        return self._member.asked.is_set()

    def all_agree(self, own: bool) -> bool:
        """Whether all workers have `own` set, by a sum; a single worker decides alone."""
        assert self.reduction is not None
        group = self.reduction.group
        if group is None:
            return own
        saying = torch.tensor([float(own)], device=group.device)
        group.sum(saying)
        return round(float(saying)) == self.world

    def normalising(self, session: Session, batch: Batch) -> AbstractContextManager[SharedBatch | None]:
        assert self.reduction is not None
        group = self.reduction.group if self.world > 1 else None
        return normalising(None if group is None else shared_batch(session, batch, group, self.rank))

    def stopping(self) -> bool:
        """Whether any worker had been asked to stop at the last step."""
        return self._stopping

    def inference(self, session: Session, place: PlaceWhole | None = None) -> Inference:
        """Exact inference, each worker computing some vertices; or, where each has the graph on its GPU, all of them.

        Computing a layer's rows again takes a GPU less time than exchanging them would.
        """
        self._evaluated += 1
        plan: LayerPlan = PartedPlan(session, self._parts, self, f"{self.generation}-{self._evaluated}")
        if place is not None:
            by_layers = getattr(session.model, "layerwise", False) and plan.by_layers
            whole = place(plan) if by_layers else None
            if self.all_agree(whole is not None) and whole is not None:
                plan = whole
        target = getattr(session.task, "node_type", None)
        return Inference(session.model, session.inputs, session.graph, plan, target, session.precision)

    def whole(self, session: Session) -> ClusterWholeWorkers:
        def collective() -> CollectiveGroup | None:
            return None if self.reduction is None or self.world == 1 else self.reduction.group

        def start_sum(parameters: Sequence[Parameter]) -> None:
            assert self.reduction is not None
            self.reduction.start_sum(parameters)

        way = self._parts, self.rows, lambda: self.generation, collective, start_sum, self.reduce_and_step
        return ClusterWholeWorkers(session, *way)

    def explanations(self, session: Session) -> WorkerExplanations:
        """Explanations for this worker's parts; workers draw such batches themselves."""
        if self._member.setup.layout.samplers_of(self.rank):
            raise PenstockError(
                f"Batches of sampler {session.job.sampler} are drawn by workers: set `samplers` of the cluster file to"
                " 0.",
                code="unsupported-combination",
            )
        self.explained = WorkerExplanations(self._parts, session)
        return self.explained

    def gather_optimiser(self, session: Session) -> None:
        assert self.reduction is not None
        self.reduction.gather_optimiser(session)

    def meet(self, progress: int) -> Round:
        """Wait for all workers; `progress` is how far this one has come."""
        own = self._member.setup.incarnation
        while True:
            answer = self._member.ask("join", step=progress, after=self.generation, incarnation=own)
            if answer.kind == "round":
                formed = Round(**answer.body)
                self.generation, self._stopping = formed.generation, False
                self._evaluated = 0
                self._parts.exchange.forget_all()
                return formed
            self._pause()

    def barrier(self, name: str) -> None:
        while True:
            kind = self._member.ask("barrier", generation=self.generation, name=name).kind
            if kind == "go":
                return
            if kind == "over":
                raise RegroupError
            self._pause()

    def holds(self) -> bool:
        """Whether the round is still current, and nothing that the workers share was lost."""
        return self._member.holds(self.generation)

    def _share_figures(self, session: Session) -> None:
        """Average the buffers of a user's module (running statistics), which each worker has
        updated by its own rows.
        """
        assert self.reduction is not None
        own = [each for each in session.learned.buffers() if each.is_floating_point()]
        if self.world == 1 or self.reduction.group is None or not own or hasattr(session.model, "normalised_rows"):
            return
        figures = torch.cat([each.reshape(-1).double() for each in own])
        summing(self.reduction.group)(figures)
        for each, part in zip(own, torch.split(figures, [each.numel() for each in own]), strict=True):
            each.copy_(part.view_as(each) / self.world)

    def _pause(self) -> None:
        if self._member.stopped.is_set():
            raise PenstockError("The controller ended the run.", code="closed")
        time.sleep(_AGAIN)


def progress_of(train_state: TrainState) -> int:
    """A run's progress as one number: its steps, and whether the end of the last epoch was completed."""
    return 2 * train_state.step + (0 if train_state.ending else 1)
