"""Ranks in processes of their own that send each other rows, each time against torch's `all_to_all_single`."""

import multiprocessing
import os
import re
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing
from matrices import KINDS

from penstock.coflow import all_to_all
from penstock.errors import PenstockError

SOON = timedelta(seconds=60)
"""After which a rank that waits in vain fails the test."""


def in_ranks(count, work, folder, backend="gloo"):
    """Carry out `work(rank, device)` in so many processes; what one of them raises is raised here."""
    store = f"file://{folder}/store"
    # All are forks of a process that has imported what they need, and has no threads.
    multiprocessing.set_forkserver_preload(["torch.distributed", "penstock.coflow"])
    given = (count, work, store, backend)
    torch.multiprocessing.start_processes(_start, given, count, start_method="forkserver")


def _start(rank, count, work, store, backend):
    torch.set_num_threads(1)
    if backend == "nccl":
        # Ranks of different hosts may have the same GPU.
        os.environ["NCCL_HOSTID"] = f"host{rank}"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=count, timeout=SOON)
    try:
        work(rank, torch.device("cuda" if backend == "nccl" else "cpu"))
    finally:
        dist.destroy_process_group()


def check_exchanges(rank, device):
    """All kinds of sizes, types and schedules, in the world and in groups that are not."""
    check_given(rank, device)
    check_group(None, KINDS, device)
    check_types(device)
    check_refusals(device)
    count = dist.get_world_size()
    for members in ([1, 3], [0, 2, 3], [2]) if count == 4 else ([count - 1],):
        group = dist.new_group(members)
        if rank in members:
            check_group(group, KINDS[1:3], device)
    if count > 2:
        check_outsiders(rank, count, device)


def check_given(rank, device):
    """The first thing a group does is an all-to-all of known sizes in which some have nothing to do."""
    ranks = dist.get_world_size()
    matrix = np.zeros((ranks, ranks), np.int64)
    assert len(all_to_all(torch.empty((0, 2), device=device), matrix)) == 0
    matrix[0, ranks - 1] = 5
    rows = numbers((5 if rank == 0 else 0, 2), torch.bfloat16, rank, device)
    came = all_to_all(rows, matrix)
    assert len(came) == (5 if rank == ranks - 1 else 0)
    assert torch.equal(came, numbers((5, 2), torch.bfloat16, 0, device)[: len(came)])


def check_group(group, kinds, device):
    """Random sizes in a group: one tensor by a schedule of its turn, lists, and sizes that all know."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    rng = np.random.default_rng(ranks)
    for number, kind in enumerate(kinds):
        matrix = np.minimum(kind(ranks, rng), 900)
        rows = numbers((int(matrix[rank].sum()), 3), torch.float32, rank + number, device)
        expected = by_torch(rows, matrix, rank, group)
        schedule = ("matched", "fair", "bvn")[number % 3]
        assert_same(all_to_all(rows, matrix[rank].tolist(), group, schedule), expected)
        few = {"max_phases": ranks + 2} if number % 2 else {"granularity": 64}
        assert_same(all_to_all(rows, matrix, group, "matched", **few), expected)
        apart = all_to_all(list(rows.split(matrix[rank].tolist())), group=group)
        assert [len(part) for part in apart] == matrix[:, rank].tolist()
        assert_same(torch.cat(apart), expected)
    small = np.full((ranks, ranks), 4)
    rows = numbers((4 * ranks, 3), torch.float32, rank, device)
    assert_same(all_to_all(rows, None, group, "printed"), by_torch(rows, small, rank, group))


def check_types(device):
    """Rows of any type and shape, also not contiguous; nothing at all."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    shapes = ((5,), (), (2, 3))
    for number, kind in enumerate((torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64)):
        rows = numbers((3 * ranks, *shapes[number % 3]), kind, rank, device)
        assert_same(all_to_all(rows), by_torch(rows, np.full((ranks, ranks), 3), rank, None))
    wide = numbers((6, 3 * ranks), torch.bfloat16, rank, device).t()
    assert_same(all_to_all(wide), by_torch(wide.contiguous(), np.full((ranks, ranks), 3), rank, None))
    for shape in ((0, 4), (2 * ranks, 0)):
        assert all_to_all(torch.empty(shape, device=device)).shape == shape
    learned = torch.ones((ranks, 2), device=device, requires_grad=True)
    assert not all_to_all(learned).requires_grad


def check_refusals(device):
    """One clear sentence on the rank whose sizes are wrong, and one on the others."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    rows = torch.zeros((2 * ranks, 2), device=device)
    own = "sizes that add up to|whole numbers|tensors of|tensors for|differ in type|cannot be split|has no rows"
    wrong = [
        (rows, [2] * (ranks - 1) + [1]),
        (rows, [1.5] * ranks),
        (rows, [2] * (ranks + 1)),
        (rows, [[1], [1, 2]]),
        ([rows] * (ranks + 1), None),
        ([rows, rows.double(), *[rows] * (ranks - 2)], None),
        ([rows] * ranks, [1] * ranks),
        (torch.zeros(2 * ranks + 1, 2, device=device), None),
        (torch.zeros((), device=device), None),
    ]
    for tensors, sizes in wrong:
        if rank == 1:
            assert_refused(own, tensors, sizes)
        else:
            assert_refused("Rank 1 could not take part", rows)
    assert_refused("give rows of one type", rows.double() if rank == 0 else rows)
    assert_refused("did you mean 'bvn'", rows, None, None, "bnv")
    assert_refused(own, rows, np.full((ranks, ranks), 7))


def check_outsiders(rank, count, device):
    """A group is for its members."""
    group = dist.new_group([0, 1])
    if rank >= 2:
        assert_refused("not a member of the group", torch.zeros((count, 1), device=device), None, group)


def assert_refused(sentence, *arguments):
    """The all-to-all is refused so."""
    try:
        all_to_all(*arguments)
    except PenstockError as error:
        assert re.search(sentence, str(error)), str(error)
    else:
        raise AssertionError(f"not refused: {sentence}")


def by_torch(rows, matrix, rank, group):
    """What torch's own gives: in bytes, as it does not know all types."""
    flat = rows.reshape(len(rows), -1).view(torch.uint8) if len(rows) else rows.new_empty((0, 1)).view(torch.uint8)
    width = rows.shape[1:].numel() * rows.element_size()
    came = torch.empty((int(matrix[:, rank].sum()), width), dtype=torch.uint8, device=rows.device)
    flat = flat.reshape(len(rows), width)
    dist.all_to_all_single(came, flat, matrix[:, rank].tolist(), matrix[rank].tolist(), group=group)
    return came


def assert_same(came, expected):
    """Bit for bit."""
    assert len(came) == len(expected)
    assert torch.equal(came.reshape(-1).view(torch.uint8), expected.reshape(-1))


def numbers(shape, kind, seed, device):
    """Numbers that differ by rank and place."""
    drawn = torch.from_numpy(np.random.default_rng(100 + seed).integers(0, 256, shape))
    return drawn.to(kind).to(device)
