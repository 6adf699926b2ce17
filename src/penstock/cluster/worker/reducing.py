"""Gradients summed among the workers, by torch's process group for the host (gloo)."""

from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from penstock.cluster.tasks.member import Member
from penstock.cluster.worker.board import WireBoard
from penstock.cluster.worker.flat import Flat
from penstock.errors import PenstockError
from penstock.train.session import Session
from penstock.train.together import RegroupError

_MORE = 2
"""Behind the gradients: the loss, how many workers were asked to stop; then, by parameter, how many have a gradient."""


class AllReduce:
    """The process group of one round. Sums are made in an order that depends on the number of workers alone."""

    def __init__(self, member: Member, session: Session, generation: int) -> None:
        setup = member.setup
        learned = sum(1 for parameter in session.learned.parameters() if parameter.requires_grad)
        self._flat = Flat(session, _MORE + learned)
        self._group: Any = None
        # The group calls the board's methods, and does not keep it.
        self._board = WireBoard(member, generation, setup.cluster.failure.patience)
        if setup.layout.world > 1:
            gloo: Any = distributed.ProcessGroupGloo
            options = gloo._Options()
            options._devices = [gloo.create_device(hostname=setup.task.address)]
            options._timeout = timedelta(seconds=setup.cluster.failure.patience)
            try:
                self._group = gloo(self._board, setup.task.rank, setup.layout.world, options)
            except (RuntimeError, PenstockError) as error:
                raise RegroupError(str(error)) from error

    def step(self, session: Session, loss: float, asked: bool) -> tuple[float, bool]:
        """One optimiser step with the sum of all workers' gradients; the batch's loss, and whether to stop."""
        flat = self._flat
        flat.take_gradients()
        flat.more[0], flat.more[1] = loss, float(asked)
        flat.more[_MORE:] = torch.tensor(flat.present, dtype=torch.float32)
        if self._group is not None:
            try:
                self._group.allreduce([flat.numbers]).wait()
            except RuntimeError as error:
                raise RegroupError(str(error)) from error
        total, stop = float(flat.more[0]), float(flat.more[1]) > 0
        flat.give_gradients([count > 0 for count in flat.more[_MORE:].tolist()])
        if session.job.clip:
            torch.nn.utils.clip_grad_norm_(session.learned.parameters(), session.job.clip)
        session.optimiser.step()
        return total, stop

    def gather_optimiser(self, session: Session) -> None:
        """It is here."""

    def close(self) -> None:
        """Let go of the other workers: those that still wait for this one hear of it."""
        self._group = None
