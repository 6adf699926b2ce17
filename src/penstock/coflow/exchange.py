"""`all_to_all`: what `torch.distributed.all_to_all_single` gives, sent as a schedule of matchings.

Every rank computes the same schedule from the same matrix of rows, so nothing but sizes is agreed upon. A rank goes on
to its next phase when its own part in this one is done: there is no barrier, and as phases come in the same order
everywhere, none can wait for a later one.
"""

from collections.abc import Sequence
from typing import Any, overload

import torch
import torch.distributed as dist

from penstock.coflow.matching import schedule_named
from penstock.coflow.rank_phases import RankPhase, Slice, phases_of_rank
from penstock.coflow.shares import agreed_shares
from penstock.errors import PenstockError


@overload
def all_to_all(
    tensors: torch.Tensor,
    sizes: Any = None,
    group: dist.ProcessGroup | None = None,
    schedule: str = "bvn",
    *,
    granularity: int = 1,
    max_phases: int | None = None,
) -> torch.Tensor: ...


@overload
def all_to_all(
    tensors: Sequence[torch.Tensor],
    sizes: Any = None,
    group: dist.ProcessGroup | None = None,
    schedule: str = "bvn",
    *,
    granularity: int = 1,
    max_phases: int | None = None,
) -> list[torch.Tensor]: ...


def all_to_all(
    tensors: torch.Tensor | Sequence[torch.Tensor],
    sizes: Any = None,
    group: dist.ProcessGroup | None = None,
    schedule: str = "bvn",
    *,
    granularity: int = 1,
    max_phases: int | None = None,
) -> torch.Tensor | list[torch.Tensor]:
    """Send every rank of a group its rows; returns what came, by rank: a tensor for a tensor, a list for a list.

    `tensors` is a list with a tensor for every rank, or one tensor whose rows go to ranks 0, 1, ... in turn, as many as
    `sizes` [n] says (evenly without it). Rows have the same type and shape everywhere. Sizes are gathered from all
    ranks first, unless `sizes` is the whole matrix [n, n] of rows that rank i has for rank j, the same everywhere.
    Phases send whole multiples of `granularity` rows; with `max_phases` that is doubled until they are few enough.
    Gradients do not flow back.
    """
    schedule_named(schedule)
    rank = dist.get_rank(group)
    if rank < 0:
        raise PenstockError(
            "This process is not a member of the group that was given to all_to_all: call it on members only.",
            code="not-permitted",
        )
    parts, matrix = agreed_shares(tensors, sizes, group)
    came = parts[0].new_empty((int(matrix[:, rank].sum()), *parts[0].shape[1:]))
    arrivals = list(torch.split(came, matrix[:, rank].tolist()))
    arrivals[rank].copy_(parts[rank])
    if came.shape[1:].numel():
        phases = phases_of_rank(matrix, rank, schedule, granularity, max_phases)
        take = _take_in_stream if came.is_cuda else _take_one_by_one
        take(phases, [_rows(part) for part in parts], [_rows(part) for part in arrivals], group)
    return came if isinstance(tensors, torch.Tensor) else arrivals


def _take_in_stream(
    phases: Sequence[RankPhase],
    leaving: list[torch.Tensor],
    arriving: list[torch.Tensor],
    group: dist.ProcessGroup | None,
) -> None:
    """The phases on GPUs: they follow each other on NCCL's stream, and nobody waits here."""
    # NCCL connects a group when it is first used, by all of its ranks at once; some may have no turn.
    dist.all_reduce(torch.zeros(1, device=arriving[0].device), group=group)
    everyone = _global_ranks(group)
    works: list[dist.Work] = []
    for turn in phases:
        works += dist.batch_isend_irecv(
            [
                dist.P2POp(what, _cut(rows[each.peer], each), everyone[each.peer], group)
                for what, rows, slices in ((dist.irecv, arriving, turn.receives), (dist.isend, leaving, turn.sends))
                for each in slices
            ]
        )
    _wait(works)


def _take_one_by_one(
    phases: Sequence[RankPhase],
    leaving: list[torch.Tensor],
    arriving: list[torch.Tensor],
    group: dist.ProcessGroup | None,
) -> None:
    """The phases on CPUs: one send after the other, all receives posted before.

    Whose receives are late does not hold back its sends. Waiting for both makes ranks wait for each other in chains,
    while the busiest receiver has nothing coming: with a hot receiver that took a third longer than the bound.
    """
    everyone = _global_ranks(group)
    coming = [
        dist.irecv(_cut(arriving[each.peer], each), everyone[each.peer], group, turn.phase)
        for turn in phases
        for each in turn.receives
    ]
    for turn in phases:
        _wait(
            [dist.isend(_cut(leaving[each.peer], each), everyone[each.peer], group, turn.phase) for each in turn.sends]
        )
    _wait(coming)


def _wait(works: Sequence[dist.Work | None]) -> None:
    for work in works:
        assert work is not None  # as it would be outside of the group
        work.wait()


def _global_ranks(group: dist.ProcessGroup | None) -> list[int]:
    return dist.get_process_group_ranks(dist.group.WORLD if group is None else group)


def _cut(rows: torch.Tensor, each: Slice) -> torch.Tensor:
    return rows[each.first : each.last].view(-1)


def _rows(part: torch.Tensor) -> torch.Tensor:
    """The same memory as rows of bytes: back ends need not know the type."""
    return part.view(len(part), -1 if len(part) else 1).view(torch.uint8)
