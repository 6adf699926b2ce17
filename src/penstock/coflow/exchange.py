"""`all_to_all`: what `torch.distributed.all_to_all_single` gives, sent as a schedule of matchings.

Every rank computes the same schedule from the same matrix of rows, so nothing but sizes is agreed upon. A rank goes on
to its next phase when its own sends and receives are done: there is no barrier, and as phases come in the same order
everywhere, none can wait for a later one.
"""

from collections.abc import Sequence
from typing import Any, overload

import torch
import torch.distributed as dist

from penstock.coflow.matching import schedule_named
from penstock.coflow.shares import agreed_shares
from penstock.coflow.turns import Slice, Turn, turns_of
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
        raise PenstockError("This process is no member of the group it calls all_to_all with: call it on members only.")
    parts, matrix = agreed_shares(tensors, sizes, group)
    came = parts[0].new_empty((int(matrix[:, rank].sum()), *parts[0].shape[1:]))
    arrivals = list(torch.split(came, matrix[:, rank].tolist()))
    arrivals[rank].copy_(parts[rank])
    if came.is_cuda:
        _meet(came.device, group)
    if came.shape[1:].numel():
        turns = turns_of(matrix, rank, schedule, granularity, max_phases)
        _take(turns, [_rows(part) for part in parts], [_rows(part) for part in arrivals], group)
    return came if isinstance(tensors, torch.Tensor) else arrivals


def _take(
    turns: Sequence[Turn], leaving: list[torch.Tensor], arriving: list[torch.Tensor], group: dist.ProcessGroup | None
) -> None:
    """The turns, one after the other. On GPUs they follow each other on NCCL's stream, and nobody waits here."""
    everyone = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)

    def operation(what: Any, rows: torch.Tensor, each: Slice) -> dist.P2POp:
        return dist.P2POp(what, rows[each.first : each.last].view(-1), everyone[each.peer], group)

    works: list[dist.Work] = []
    for turn in turns:
        if works and not arriving[0].is_cuda:
            _wait(works)
            works = []
        works += dist.batch_isend_irecv(
            [operation(dist.irecv, arriving[each.peer], each) for each in turn.receives]
            + [operation(dist.isend, leaving[each.peer], each) for each in turn.sends]
        )
    _wait(works)


def _wait(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()


def _rows(part: torch.Tensor) -> torch.Tensor:
    """The same memory as rows of bytes: back ends need not know the type."""
    return part.view(len(part), -1 if len(part) else 1).view(torch.uint8)


def _meet(device: torch.device, group: dist.ProcessGroup | None) -> None:
    """NCCL connects a group when it is first used, by all of its ranks at once; some may have no turn."""
    dist.all_reduce(torch.zeros(1, device=device), group=group)
