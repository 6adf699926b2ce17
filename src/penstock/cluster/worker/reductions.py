"""The ways to sum gradients in a round, by name: torch's collectives, or the run's own wire."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from penstock.cluster.gpus import own_gpus
from penstock.cluster.member import Member
from penstock.cluster.worker.collective_group import CollectiveGroup
from penstock.cluster.worker.groups import DeviceCollectiveGroup, HostCollectiveGroup
from penstock.cluster.worker.wire_collective import WireCollective, WireGroup

MakeGroup = Callable[[Member, int, WireCollective, torch.device], CollectiveGroup | None]
"""(the worker, the round's number, its mailbox, the device of its gradients) -> the group; None: it is alone."""


def _torch_group(
    member: Member, generation: int, collective: WireCollective, device: torch.device
) -> CollectiveGroup | None:
    """GPUs sum where each worker has its own (NCCL); workers that share one leave it to their hosts (gloo)."""
    setup = member.setup
    if setup.layout.world == 1:
        return None
    if device.type == "cuda" and own_gpus(setup.cluster, setup.layout):
        return DeviceCollectiveGroup(member, generation, device)
    return HostCollectiveGroup(member, generation)


def _wire_group(
    member: Member, generation: int, collective: WireCollective, device: torch.device
) -> CollectiveGroup | None:
    """Hosts sum, over connections that are authenticated and encrypted as the rest of the run's."""
    return WireGroup(member, generation, collective) if member.setup.layout.world > 1 else None


class Reduction(NamedTuple):
    """One way to sum gradients over workers."""

    make_group: MakeGroup
    on_the_wire: bool
    """Whether what is summed is protected as the rest of the run's messages are."""


REDUCTIONS = {"torch": Reduction(_torch_group, False), "wire": Reduction(_wire_group, True)}
