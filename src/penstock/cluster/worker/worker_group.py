"""One of several workers: its round, its share of a batch, and the step that all make with the sum of their gradients,
by an all-reduce or by parameter servers.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.nn import Parameter

from penstock.cluster.layout import chosen_reduction
from penstock.cluster.member import Member
from penstock.cluster.rendezvous import Round
from penstock.cluster.server import State, cut_state, join_state, shape_of, shard_pieces
from penstock.cluster.worker.batch_norm import shared_batch, summing
from penstock.cluster.worker.batch_source import SeedSplit
from penstock.cluster.worker.collectives import REDUCTIONS, CollectiveGroup, StagedSums, WireCollective, WireGroup
from penstock.cluster.worker.cut_graph import Parts
from penstock.cluster.worker.explained.explanations import WorkerExplanations
from penstock.cluster.worker.inputs import PartedInputs
from penstock.cluster.worker.layerwise import PartedPlan
from penstock.cluster.worker.whole import ClusterWholeWorkers, RowInbox
from penstock.errors import PenstockError
from penstock.nn.norm import SharedBatch, normalising
from penstock.pipeline.schedule import Planned
from penstock.pipeline.stages import Batch
from penstock.train.layerwise.inference import Inference, LayerPlan
from penstock.train.run_files.checkpoints import TrainState
from penstock.train.session import Session
from penstock.train.steps.group import DeviceSums, PlaceWhole, RegroupError
from penstock.train.steps.update import make_step
from penstock.wire.coflows import GRADIENTS, within_kind
from penstock.wire.message import Message


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
    """The `train.steps.group.WorkerGroup` of a cluster run."""

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
        answer = self._member.ask_until_known("join", step=progress, after=self.generation, incarnation=own)
        formed = Round(**answer.body)
        self.generation, self._stopping = formed.generation, False
        self._evaluated = 0
        self._parts.exchange.forget_all()
        return formed

    def barrier(self, name: str) -> None:
        answer = self._member.ask_until_known("barrier", generation=self.generation, name=name)
        if answer.kind == "over":
            raise RegroupError

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


def progress_of(train_state: TrainState) -> int:
    """A run's progress as one number: its steps, and whether the end of the last epoch was completed."""
    return 2 * train_state.step + (0 if train_state.ending else 1)


# `clip` where several workers train: the norm is that of all workers' gradients together. Gradients of the model are
# summed by the workers or by servers, those of learnable rows by their owners. Each of these answers with the squares
# of its sums, also for the step before, since some workers continue while others still ask. So every worker computes
# the same factor without a further barrier, and sends it to all who wait for it before it continues.

_TINY = 1e-6
"""The same as in torch."""


def clip_with_owners(session: Session) -> None:
    """Clip the model's gradients, which are summed already, together with those of learnable rows."""
    if not session.inputs.tables:
        torch.nn.utils.clip_grad_norm_(session.learned.parameters(), session.job.clip)
        return
    gradients = [p.grad for p in session.learned.parameters() if p.grad is not None]
    factor = clip_factor(session, sum(float(gradient.double().square().sum()) for gradient in gradients))
    for gradient in gradients:
        gradient.mul_(factor)


def clip_factor(session: Session, squares: float) -> float:
    """The factor of all gradients, where the model's have these squares; it is sent to the rows' owners."""
    inputs = session.inputs
    assert isinstance(inputs, PartedInputs)
    norm = math.sqrt(squares + inputs.squares())
    # As in torch: a non-finite norm makes all gradients NaN, which is reported with the next loss.
    factor = norm if math.isnan(norm) else min(1.0, session.job.clip / (norm + _TINY))
    inputs.shrink(factor)
    return factor


# All gradients of a model as one flat array, and back.


def learned_parameters(session: Session) -> list[Parameter]:
    """The parameters of a session that are trained."""
    return [each for each in session.learned.parameters() if each.requires_grad]


def are_finite(parameters: Sequence[Parameter]) -> bool:
    """Whether no gradient that some parameters have is infinite or NaN."""
    found = [each.grad.isfinite().all() for each in parameters if each.grad is not None]
    return not found or bool(torch.stack(found).all())


class FlatGradients:
    """Some parameters, concatenated, and room for a few numbers more.

    `numbers` are on the host, where they are summed, or `on_device`: where the parameters are. Between a GPU and the
    host they are copied at once, not parameter by parameter.
    """

    def __init__(self, parameters: Sequence[Parameter], more: int, on_device: bool = False) -> None:
        self.parameters = list(parameters)
        self.sizes = [p.numel() for p in self.parameters]
        self.count = sum(self.sizes)
        device = next((parameter.device for parameter in self.parameters), torch.device("cpu"))
        self._near = torch.zeros(self.count + more, dtype=torch.float32, device=device)
        self._copied = device.type != "cpu" and not on_device
        self.numbers = torch.zeros(self._near.shape, pin_memory=True) if self._copied else self._near
        self.present = [False] * len(self.sizes)
        """Whether each parameter had a gradient when they were taken; some have none in a batch without their edges."""

    @property
    def more(self) -> Tensor:
        """The numbers after the gradients."""
        return self.numbers[self.count :]

    def set_more(self, values: Sequence[float]) -> None:
        """Write the numbers after the gradients."""
        self.more.copy_(torch.tensor(values, dtype=torch.float32))

    def take_gradients(self) -> None:
        """Copy the gradients from the parameters; zeros where one has none."""
        self.present = [parameter.grad is not None for parameter in self.parameters]
        for part, parameter in zip(self._parts(), self.parameters, strict=True):
            if parameter.grad is None:
                part.zero_()
            else:
                part.copy_(parameter.grad.reshape(-1))
        self._fetch()

    def give_gradients(self, present: list[bool]) -> None:
        """Copy the gradients to the parameters for which any worker has one: an optimiser skips the others."""
        self._bring()
        for part, parameter, there in zip(self._parts(), self.parameters, present, strict=True):
            if not there:
                parameter.grad = None
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(part.view_as(parameter))

    def take_weights(self) -> None:
        """Copy the parameters into the flat array."""
        for part, parameter in zip(self._parts(), self.parameters, strict=True):
            part.copy_(parameter.detach().reshape(-1))
        self._fetch()

    def give_weights(self) -> None:
        """Copy the flat array into the parameters."""
        self._bring()
        with torch.no_grad():
            for part, parameter in zip(self._parts(), self.parameters, strict=True):
                parameter.copy_(part.view_as(parameter))

    def _parts(self) -> list[Tensor]:
        return list(torch.split(self._near[: self.count], self.sizes))

    def _fetch(self) -> None:
        if self._copied:
            self.numbers[: self.count].copy_(self._near[: self.count])

    def _bring(self) -> None:
        if self._copied:
            self._near[: self.count].copy_(self.numbers[: self.count])


# Gradients summed among the workers, and the same step made by each.

_MORE = 2
"""Numbers after the gradients: the loss, how many workers were asked to stop; then, by parameter, how many have a
gradient.
"""


class AllReduce:
    """The sums of one round, by the cluster's `reduction`."""

    def __init__(self, member: Member, session: Session, generation: int, collective: WireCollective) -> None:
        device = session.inputs.device
        reduction = REDUCTIONS[chosen_reduction(member.setup.cluster, member.setup.layout)]
        self.group = reduction.make_group(member, generation, collective, device)
        self._parameters = learned_parameters(session)
        self._known: dict[tuple[int, ...], FlatGradients] = {}
        self._begun: list[tuple[FlatGradients, Callable[[], None]]] = []
        """Gradients of the current step that are being summed."""
        self._may_overflow = session.inputs.on_gpu and session.job.compute_type == "float16"

    def start_sum(self, parameters: Sequence[Parameter]) -> None:
        """Begin to sum the gradients of some parameters, which have none afterwards; `step` completes it.

        Only hosts do this: GPUs would compute nothing meanwhile, and leave all gradients to the step.
        """
        if self.group is None or self.group.sums_on_device:
            return
        flat = self._flat(parameters, len(parameters))
        flat.take_gradients()
        flat.set_more([float(each) for each in flat.present])
        with within_kind(GRADIENTS):
            self._begun.append((flat, cast(StagedSums, self.group).start_sum(flat.numbers)))
        for parameter in parameters:
            parameter.grad = None

    def step(self, session: Session, loss: float, asked: bool) -> tuple[float, bool]:
        total, stopping = (loss, asked) if self.group is None else self._summed(self.group, loss, asked)
        if self._may_overflow and not are_finite(self._parameters):
            # A gradient overflowed on some worker: all skip the step, as one that trains alone does.
            return total, stopping
        make_step(session, clip=clip_with_owners)
        return total, stopping

    def _summed(self, group: CollectiveGroup, loss: float, asked: bool) -> tuple[float, bool]:
        """Put the sum of all workers' gradients into the parameters; returns the batch's loss, and whether to stop."""
        begun, self._begun = self._begun, []
        known = {id(each) for flat, _ in begun for each in flat.parameters}
        left = [each for each in self._parameters if id(each) not in known]
        flat = self._flat(left, _MORE + len(left))
        flat.take_gradients()
        flat.set_more([loss, float(asked), *map(float, flat.present)])
        with within_kind(GRADIENTS):
            group.sum(flat.numbers)
            for _, finish in begun:
                finish()
        total, stopping, *present = flat.more.tolist()
        flat.give_gradients([count > 0 for count in present])
        for part, _ in begun:
            part.give_gradients([count > 0 for count in part.more.tolist()])
        return total, stopping > 0

    def _flat(self, parameters: Sequence[Parameter], more: int) -> FlatGradients:
        key = tuple(map(id, parameters))
        if key not in self._known:
            on_device = self.group is None or self.group.sums_on_device
            self._known[key] = FlatGradients(parameters, more, on_device)
        return self._known[key]

    def device_sums(self) -> "AllReduce":
        """Itself: captured steps launch sums and make the step with them."""
        return self

    def launch(self, numbers: Tensor) -> None:
        """Sum numbers in the device's memory, in place, before whatever is launched next."""
        if self.group is not None:
            with within_kind(GRADIENTS):
                self.group.launch_sum(numbers)

    def finish(self, is_done: Callable[[], bool]) -> None:
        """Wait for the sums that were launched."""
        if self.group is not None:
            self.group.finish_sums(is_done)

    def abandon(self) -> None:
        """Leave the group, which ends sums that a lost worker would never join."""
        self.close()

    def gather_optimiser(self, session: Session) -> None:
        """Do nothing: every worker holds the whole optimiser."""

    def close(self) -> None:
        """Leave the group: workers that still wait for this one get an error."""
        if self.group is not None:
            self.group.close()


# Gradients summed by parameter servers, which send back the new weights.


class ParameterServers:
    """The connection to the servers in one round."""

    def __init__(
        self, member: Member, session: Session, generation: int, step: int, again: bool, collective: WireCollective
    ) -> None:
        """`step`: how many are done; `again`: the servers must load this worker's weights whatever they have."""
        self._member, self._generation, self._step = member, generation, step
        self._flat = FlatGradients(learned_parameters(session), _MORE)
        self.group: CollectiveGroup | None = (
            WireGroup(member, generation, collective) if member.setup.layout.world > 1 else None
        )
        tasks = member.setup.layout.of_kind("server")
        self._pieces = shard_pieces(self._flat.sizes, len(tasks))
        ends = [0, *itertools.accumulate(sum(p.last - p.first for p in pieces) for pieces in self._pieces)]
        self._bounds = list(itertools.pairwise(ends))
        self._channels = [member.endpoint.channel(task.id, "gradients", 0) for task in tasks]
        if member.setup.task.rank == 0:
            self._begin(session, again)

    def step(self, session: Session, loss: float, asked: bool) -> tuple[float, bool]:
        with within_kind(GRADIENTS):
            return self._reduced(session, loss, asked)

    def _reduced(self, session: Session, loss: float, asked: bool) -> tuple[float, bool]:
        flat = self._flat
        flat.take_gradients()
        flat.more[0], flat.more[1] = loss, float(asked)
        rate = float(session.optimiser.param_groups[0]["lr"])
        calls = []
        for number, (first, last) in enumerate(self._bounds):
            # The first server sums the further numbers too.
            more = _MORE if number == 0 else 0
            present = torch.tensor([float(flat.present[piece.parameter]) for piece in self._pieces[number]])
            numbers = torch.cat([flat.numbers[first:last], present, flat.more[:more]]).numpy()
            body = {"step": self._step, "rate": rate, "more": more}
            calls.append(self._channels[number].start(Message("gradients", body, (numbers,)), self._patience))
        for call in calls:
            call.result()
        if session.job.clip:
            self._clip(session)
        total, stop = loss, asked
        for number, (first, last) in enumerate(self._bounds):
            weights, more_sums = self._weights(number)
            flat.numbers[first:last] = weights
            if number == 0:
                total, stop = float(more_sums[0]), float(more_sums[1]) > 0
        flat.give_weights()
        self._step += 1
        return total, stop

    def start_sum(self, parameters: Sequence[Parameter]) -> None:
        """Do nothing: servers get all gradients of a step at once."""

    def device_sums(self) -> None:
        """None: the servers make the step."""

    def gather_optimiser(self, session: Session) -> None:
        """Fetch the servers' states into the optimiser of the model's parameters."""
        states: list[State] = []
        for channel in self._channels:
            answer = channel.call(Message("optimiser"), self._patience)
            arrays = (torch.from_numpy(array.copy()) for array in answer.arrays)
            states += [{str(name): next(arrays) for name in names} for names in answer.body["names"]]
        parameters = self._flat.parameters
        pieces = [piece for server in self._pieces for piece in server]
        for parameter, state in zip(parameters, join_state(pieces, states, parameters), strict=True):
            if state:
                session.optimiser.state[parameter] = state

    def close(self) -> None:
        """Do nothing: parameter servers keep no connection for a round."""

    @property
    def _patience(self) -> float:
        return self._member.setup.cluster.failure.patience

    def _begin(self, session: Session, again: bool) -> None:
        self._flat.take_weights()
        parameters = self._flat.parameters
        for channel, pieces, (first, last) in zip(self._channels, self._pieces, self._bounds, strict=True):
            states = cut_state(session.optimiser, parameters, pieces)
            arrays = [self._flat.numbers[first:last], *(value for state in states for value in state.values())]
            shapes = [shape_of(piece, parameters[piece.parameter]) for piece in pieces]
            names = [list(state) for state in states]
            body = {"step": self._step, "shapes": shapes, "names": names, "again": again}
            channel.call(Message("begin", body, tuple(a.contiguous().cpu().numpy() for a in arrays)), self._patience)

    def _clip(self, session: Session) -> None:
        """Every worker computes the same factor and sends it to all servers; repeated ones have no effect."""
        servers = range(len(self._channels))
        squares = sum(float(self._answer(number, "squares").body["squares"]) for number in servers)
        factor = clip_factor(session, squares)
        for number in servers:
            self._answer(number, "shrink", factor=factor)

    def _weights(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        weights, more = self._answer(number, "weights").arrays
        return torch.from_numpy(weights.copy()), torch.from_numpy(more.copy())

    def _answer(self, number: int, kind: str, **more: Any) -> Message:
        """A server's answer about the current step, once all gradients have arrived."""
        while True:
            answer = self._channels[number].call(Message(kind, {"step": self._step, **more}), self._patience)
            if answer.kind != "wait":
                return answer
            # Another worker may have left the round without being lost: its gradients will not come.
            if self._member.is_over(self._generation):
                raise RegroupError("the round is over")
