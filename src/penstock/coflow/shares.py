"""What every rank of a group sends to every other: checked, and the same on all ranks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from penstock.errors import PenstockError
from penstock.graph.arrays import Array

_REFUSED = -1
"""In place of the bytes of a row: what this rank was given is wrong, and it sends nothing."""


def agreed_shares(
    tensors: torch.Tensor | Sequence[torch.Tensor], sizes: Any, group: dist.ProcessGroup | None
) -> tuple[list[torch.Tensor], Array]:
    """A contiguous tensor for every rank, and the rows from every rank to every rank (int64 [n, n]).

    One all-gather, unless `sizes` is that matrix already. What is wrong on one rank is raised on all, who would else
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
        # Rows of different lengths: refused with other wrong shapes.
        return np.empty(0)


def _gather(own: list[int], group: dist.ProcessGroup | None, device: torch.device) -> Array:
    """These numbers of every rank, int64 [n, numbers]."""
    mine = torch.tensor(own, dtype=torch.int64, device=device)
    told = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(told, mine, group=group)
    numbers: Array = torch.stack(told).cpu().numpy()
    return numbers


def _device(tensors: torch.Tensor | Sequence[torch.Tensor]) -> torch.device:
    """Where the tensors are, if there are any."""
    first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
    return torch.device("cpu") if first is None else first.device
