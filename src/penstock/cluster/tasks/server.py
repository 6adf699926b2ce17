"""The parameter server: sums gradients and steps."""

from functools import partial
from pathlib import Path

import torch

from penstock.cluster.layout import Setup, worker_rank
from penstock.cluster.member import Member
from penstock.cluster.server import Begin, Gradients, Shard, ShrinkShard, StepRequest, begun_with, gradients_in
from penstock.errors import PenstockError
from penstock.graph.files import make_private_folder
from penstock.store.parts.requests import checked
from penstock.train.job import stored_job
from penstock.train.run_files.checkpoints import DamagedState
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message

_PATIENCE = 0.25
"""Seconds that a request for weights waits before it is answered with a request to repeat it."""


def run_server(setup: Setup) -> int:
    """Serve until the run is over."""
    torch.set_num_threads(1)
    folder = make_private_folder(Path(setup.run) / "servers")
    with Member(setup, setup.layout.world + 2) as member:
        shard = _opened(member, folder / f"{setup.task.id}.state")
        serve_shard(member.endpoint, shard, setup.layout.world)
        member.announce()
        member.stopped.wait()
    return 0


def _opened(member: Member, file: Path) -> Shard:
    """The shard from its file, or an empty one, which the first worker will fill."""
    given = stored_job(member.setup.job, "The run's job"), member.setup.layout.world, file
    try:
        return Shard(*given)
    except DamagedState as error:
        member.drop_damaged(error, "its weights and the optimiser's state")
        file.unlink()
        return Shard(*given)


def serve_shard(endpoint: Endpoint, shard: Shard, world: int) -> None:
    """Serve the `world` workers of a run."""
    rank_of = partial(worker_rank, world=world, what="send gradients")

    def begin(message: Message, sender: str) -> Message:
        asked = checked(message, Begin)
        if rank_of(sender) != 0:
            raise PenstockError(
                f"{sender} may not set the first weights: only the first worker may.", code="not-available"
            )
        shard.begin(asked.step, asked.shapes, *begun_with(message, asked), asked.again)
        return Message("begun")

    def gradients(message: Message, sender: str) -> Message:
        asked = checked(message, Gradients)
        shard.give(asked.step, rank_of(sender), asked.rate, gradients_in(message), asked.more)
        return Message("taken")

    def weights(message: Message, sender: str) -> Message:
        rank_of(sender)
        found = shard.after(checked(message, StepRequest).step, _PATIENCE)
        if found is None:
            return Message("wait")
        return Message("weights", arrays=tuple(value.numpy().copy() for value in found))

    def squares(message: Message, sender: str) -> Message:
        rank_of(sender)
        found = shard.squares(checked(message, StepRequest).step, _PATIENCE)
        return Message("wait") if found is None else Message("squares", {"squares": found})

    def shrink(message: Message, sender: str) -> Message:
        rank_of(sender)
        asked = checked(message, ShrinkShard)
        return Message("shrunk" if shard.shrink(asked.step, asked.factor) else "wait")

    def optimiser(message: Message, sender: str) -> Message:
        rank_of(sender)
        states = shard.states()
        arrays = tuple(value.numpy().copy() for state in states for value in state.values())
        return Message("optimiser", {"names": [list(state) for state in states]}, arrays)

    for handler in (begin, gradients, weights, squares, shrink, optimiser):
        endpoint.serve(handler.__name__, handler)
