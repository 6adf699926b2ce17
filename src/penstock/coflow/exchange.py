"""`all_to_all`: the result of `torch.distributed.all_to_all_single`, sent as a schedule of matchings.

Every rank computes the same schedule from the same matrix of rows, so only sizes are exchanged. A rank continues with
its next phase when its own part of this one is done: there is no barrier, and as phases are in the same order
everywhere, none can wait for a later one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, overload

import numpy as np
import torch
import torch.distributed as dist

from penstock.coflow.matching import SCHEDULES, schedule
from penstock.errors import PenstockError
from penstock.graph.arrays import Array

# The phases of an all-to-all from the view of one rank: which rows it sends to whom, and receives from whom.
#
# Schedules are made in units of rows, so that no row is cut. With a granularity of g rows a unit, a phase sends whole
# units and the last of a pair may be smaller: fewer different sizes make fewer phases, and every pair rounded up makes
# them a little longer.

_KEPT = 128
"""Schedules that are cached: sizes of static layers recur every step."""


@dataclass(frozen=True)
class Slice:
    """Rows `[first, last)` of what one rank has for another."""

    peer: int
    first: int
    last: int


@dataclass(frozen=True)
class RankPhase:
    """A rank's part of one phase."""

    phase: int
    """Its number, the same for all ranks."""
    sends: tuple[Slice, ...]
    receives: tuple[Slice, ...]


def phases_of_rank(
    rows: Array, rank: int, name: str, granularity: int = 1, max_phases: int | None = None
) -> tuple[RankPhase, ...]:
    """The phases in which a rank has something to do; `rows` [n, n] is what rank i has for rank j."""
    if granularity < 1:
        raise PenstockError(
            f"granularity is {granularity}: give 1 row or more.",
            code="value-out-of-range",
        )
    rows = rows.astype(np.int64)
    return _phases_of_rank(rows.tobytes(), len(rows), rank, name, granularity, max_phases)


@lru_cache(_KEPT)
def _phases_of_rank(
    rows: bytes, ranks: int, rank: int, name: str, granularity: int, max_phases: int | None
) -> tuple[RankPhase, ...]:
    matrix = np.frombuffer(rows, np.int64).reshape(ranks, ranks)
    if name == "fair":
        return _at_once(matrix, rank)
    if max_phases is not None:
        granularity = _coarse_enough(matrix, name, granularity, max_phases)
    sent, received = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    turns = []
    for number, phase in enumerate(schedule(_units(matrix, granularity), name)):
        sends, receives = list[Slice](), list[Slice]()
        for flow in np.flatnonzero(((phase.senders == rank) | (phase.peers == rank)) & (phase.peers >= 0)):
            sender, receiver = int(phase.senders[flow]), int(phase.peers[flow])
            so_far, peer, side = (sent, receiver, sends) if sender == rank else (received, sender, receives)
            first = int(so_far[peer])
            last = min(first + int(phase.sizes[flow]) * granularity, int(matrix[sender, receiver]))
            so_far[peer] = last
            side.append(Slice(peer, first, last))
        if sends or receives:
            turns.append(RankPhase(number, tuple(sends), tuple(receives)))
    return tuple(turns)


def _at_once(matrix: Array, rank: int) -> tuple[RankPhase, ...]:
    """Everything in one phase. A rank begins with its successor, so that not all begin with the same receiver."""
    others = [(rank + shift) % len(matrix) for shift in range(1, len(matrix))]
    sends = tuple(Slice(peer, 0, int(matrix[rank, peer])) for peer in others if matrix[rank, peer])
    receives = tuple(Slice(peer, 0, int(matrix[peer, rank])) for peer in reversed(others) if matrix[peer, rank])
    return (RankPhase(0, sends, receives),) if sends or receives else ()


def _units(matrix: Array, granularity: int) -> Array:
    return -(-matrix // granularity)


def _coarse_enough(matrix: Array, name: str, granularity: int, max_phases: int) -> int:
    """The granularity, doubled until there are so few phases."""
    while len(schedule(_units(matrix, granularity), name)) > max_phases:
        if granularity >= matrix.max():
            raise PenstockError(
                f"Schedule {name!r} needs more than {max_phases} phases even with one for each pair's rows: "
                "allow as many as a rank has peers, or send everything at once with 'fair'.",
                code="value-out-of-range",
            )
        granularity *= 2
    return granularity


# What every rank of a group sends to every other: checked, and the same on all ranks.

_REFUSED = -1
"""Sent instead of the bytes of a row: this rank's arguments are invalid, and it sends nothing."""


def agreed_shares(
    tensors: torch.Tensor | Sequence[torch.Tensor], sizes: Any, group: dist.ProcessGroup | None
) -> tuple[list[torch.Tensor], Array]:
    """A contiguous tensor for every rank, and the rows from every rank to every rank (int64 [n, n]).

    One all-gather, unless `sizes` is that matrix already. An error on one rank is raised on all, which would otherwise
    wait for it; with a matrix given, the others cannot know.
    """
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    given = None if sizes is None else _array(sizes)
    known = given is not None and given.ndim == 2
    try:
        parts = _parts(tensors, given, ranks, rank)
    except PenstockError:
        if not known:
            _gather([_REFUSED] + [0] * ranks, group, _device(tensors))
        raise
    if given is not None and known:
        return parts, given.astype(np.int64)
    row_bytes = parts[0].element_size() * parts[0].shape[1:].numel()
    told = _gather([row_bytes, *(len(part) for part in parts)], group, parts[0].device)
    refused = np.flatnonzero(told[:, 0] == _REFUSED)
    if len(refused):
        raise PenstockError(
            f"Rank {refused[0]} could not take part in the all_to_all, and its own error says why: nothing was sent.",
            code="mismatched-inputs",
        )
    if (told[:, 0] != row_bytes).any():
        raise PenstockError(
            f"The ranks' rows have {', '.join(map(str, told[:, 0]))} bytes: give rows of one type and shape on every"
            " rank.",
            code="mismatched-inputs",
        )
    return parts, told[:, 1:]


def _parts(
    tensors: torch.Tensor | Sequence[torch.Tensor], given: Array | None, ranks: int, rank: int
) -> list[torch.Tensor]:
    wanted = None if given is None else _own(given, ranks, rank)
    if isinstance(tensors, torch.Tensor):
        return _split(tensors.detach(), wanted, ranks, rank)
    parts = [part.detach() for part in tensors]
    if len(parts) != ranks:
        raise PenstockError(
            f"Rank {rank} has {len(parts)} tensors for {ranks} ranks: give one for each.", code="shape-mismatch"
        )
    if parts[0].ndim == 0 or len({(part.dtype, part.device, part.shape[1:]) for part in parts}) > 1:
        raise PenstockError(
            f"Rank {rank}'s tensors differ in type, device or the shape of a row: make them alike.", code="wrong-type"
        )
    rows = [len(part) for part in parts]
    if wanted is not None and rows != wanted:
        raise PenstockError(
            f"Rank {rank} has tensors of {rows} rows where its sizes are {wanted}: make them equal.",
            code="shape-mismatch",
        )
    return [part.contiguous() for part in parts]


def _split(tensor: torch.Tensor, wanted: list[int] | None, ranks: int, rank: int) -> list[torch.Tensor]:
    """The rows of one tensor, in the order of ranks."""
    if tensor.ndim == 0:
        raise PenstockError(f"Rank {rank}'s tensor has no rows: give it at least one dimension.", code="shape-mismatch")
    rows = len(tensor)
    if wanted is None:
        if rows % ranks:
            raise PenstockError(
                f"Rank {rank}'s {rows} rows cannot be split among {ranks} ranks: give sizes.", code="shape-mismatch"
            )
        wanted = [rows // ranks] * ranks
    if sum(wanted) != rows:
        raise PenstockError(
            f"Rank {rank} has {rows} rows and sizes that add up to {sum(wanted)}: make them equal.",
            code="shape-mismatch",
        )
    return list(torch.split(tensor.contiguous(), wanted))


def _own(given: Array, ranks: int, rank: int) -> list[int]:
    """How many rows go to each rank."""
    if given.shape not in ((ranks,), (ranks, ranks)) or given.dtype.kind not in "iu" or (given < 0).any():
        raise PenstockError(
            f"Rank {rank}'s sizes do not say how many rows go to each of {ranks} ranks: give {ranks} whole numbers "
            f"from 0 on, or {ranks} rows of them, one for each rank.",
            code="shape-mismatch",
        )
    own: list[int] = (given if given.ndim == 1 else given[rank]).tolist()
    return own


def _array(sizes: Any) -> Array:
    try:
        return np.asarray(sizes)
    except ValueError:
        # Rows of different lengths: refused below with other wrong shapes.
        return np.empty(0)


def _gather(own: list[int], group: dist.ProcessGroup | None, device: torch.device) -> Array:
    """These numbers of every rank, int64 [n, numbers]."""
    mine = torch.tensor(own, dtype=torch.int64, device=device)
    told = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(told, mine, group=group)
    numbers: Array = torch.stack(told).cpu().numpy()
    return numbers


def _device(tensors: torch.Tensor | Sequence[torch.Tensor]) -> torch.device:
    """The device of the tensors; the CPU if there are none."""
    first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
    return torch.device("cpu") if first is None else first.device


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
    SCHEDULES[schedule]
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
    """The phases on GPUs: they follow each other on NCCL's stream, without waiting here."""
    # NCCL connects a group on its first use by all ranks at once, and some may have nothing to send.
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

    Late receives do not hold back sends. Waiting for both makes ranks wait for each other in chains, while the busiest
    receiver is idle: with a hot receiver that took a third longer than the bound.
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
    """The same memory as rows of bytes, so that back ends need not support the dtype."""
    return part.view(len(part), -1 if len(part) else 1).view(torch.uint8)
