"""The parameter server: sums gradients and steps."""

from pathlib import Path

import numpy as np
import torch

from penstock.cluster.server.shard import Shard
from penstock.cluster.setup import Setup
from penstock.cluster.tasks.member import Member
from penstock.graph.arrays import Array
from penstock.train.job import make_job
from penstock.wire import Message

_PATIENCE = 0.25
"""Seconds that a worker is kept waiting for weights before it is told to ask again."""


def run_server(setup: Setup) -> int:
    """Serve until the run is over."""
    torch.set_num_threads(1)
    folder = Path(setup.run) / "servers"
    folder.mkdir(exist_ok=True)
    shard = Shard(make_job(setup.job), setup.layout.world, folder / f"{setup.task.id}.state")
    with Member(setup, setup.layout.world + 2) as member:
        _serve(member, shard)
        member.announce()
        member.stopped.wait()
    return 0


def _serve(member: Member, shard: Shard) -> None:
    def begin(message: Message, sender: str) -> Message:
        body, (weights, *values) = message.body, message.arrays
        left = iter(values)
        states = [{str(name): _tensor(next(left)) for name in names} for names in body["names"]]
        shard.begin(int(body["step"]), body["shapes"], _tensor(weights), states, bool(body["again"]))
        return Message("begun")

    def gradients(message: Message, sender: str) -> Message:
        body, rank = message.body, int(sender.removeprefix("worker-"))
        shard.give(int(body["step"]), rank, float(body["rate"]), _tensor(message.arrays[0]), int(body["more"]))
        return Message("taken")

    def weights(message: Message, sender: str) -> Message:
        found = shard.after(int(message.body["step"]), _PATIENCE)
        if found is None:
            return Message("wait")
        return Message("weights", arrays=tuple(value.numpy().copy() for value in found))

    def squares(message: Message, sender: str) -> Message:
        found = shard.squares(int(message.body["step"]), _PATIENCE)
        return Message("wait") if found is None else Message("squares", {"squares": found})

    def shrink(message: Message, sender: str) -> Message:
        there = shard.shrink(int(message.body["step"]), float(message.body["factor"]))
        return Message("shrunk" if there else "wait")

    def optimiser(message: Message, sender: str) -> Message:
        states = shard.states()
        arrays = tuple(value.numpy().copy() for state in states for value in state.values())
        return Message("optimiser", {"names": [list(state) for state in states]}, arrays)

    for handler in (begin, gradients, weights, squares, shrink, optimiser):
        member.post.serve(handler.__name__, handler)


def _tensor(array: Array) -> torch.Tensor:
    """A copy: what came over the wire is a view of the message."""
    return torch.from_numpy(np.array(array))
