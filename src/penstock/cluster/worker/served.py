"""Gradients summed by parameter servers, which give the new weights back."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import Parameter

from penstock.cluster.member import Member
from penstock.cluster.server.pieces import State, cut_state, join_state, shape_of, shard_pieces
from penstock.cluster.worker.clip import clip_factor
from penstock.cluster.worker.collective_group import CollectiveGroup
from penstock.cluster.worker.flat import FlatGradients, learned_parameters
from penstock.cluster.worker.wire_collective import WireCollective, WireGroup
from penstock.coflow_context import GRADIENTS, within_kind
from penstock.train.execution.worker_group import RegroupError
from penstock.train.session import Session
from penstock.wire import Message

_MORE = 2
"""Behind the gradients: the loss, and how many workers were asked to stop."""


class ParameterServers:
    """The way to the servers in one round."""

    def __init__(
        self, member: Member, session: Session, generation: int, step: int, again: bool, collective: WireCollective
    ) -> None:
        """`step`: how many are done; `again`: the servers must take this worker's weights whatever they have."""
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
        """One step of the servers with all workers' gradients; the batch's loss, and whether to stop."""
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
        """The servers' states, as those of the model's parameters."""
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
        """Every worker comes to the same factor, and tells it to all: whoever has it already is told in vain."""
        servers = range(len(self._channels))
        squares = sum(float(self._answer(number, "squares").body["squares"]) for number in servers)
        factor = clip_factor(session, squares)
        for number in servers:
            self._answer(number, "shrink", factor=factor)

    def _weights(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        weights, more = self._answer(number, "weights").arrays
        return torch.from_numpy(weights.copy()), torch.from_numpy(more.copy())

    def _answer(self, number: int, kind: str, **more: Any) -> Message:
        """What a server says of the step under way, once it can; all gradients must be there for that."""
        while True:
            answer = self._channels[number].call(Message(kind, {"step": self._step, **more}), self._patience)
            if answer.kind != "wait":
                return answer
            if self._member.round >= self._generation or self._member.stopped.is_set() or self._left():
                raise RegroupError("the round is over")

    def _left(self) -> bool:
        """Whether another worker has left the round without being lost: its gradients will not come."""
        return not self._member.ask("holds", generation=self._generation).body["holds"]
