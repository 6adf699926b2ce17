"""Batch normalisation of rows that several workers share: what one worker would have computed."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.nn.drop import relu_drop
from penstock.nn.norm import BatchNorm, RowShares, SharedBatch, normalising
from refusals import refused

WIDTH = 3


class Adding:
    """Sums of several threads' numbers, in the order of their ranks."""

    def __init__(self, world):
        self._barrier, self._given = threading.Barrier(world, timeout=20), [None] * world

    def of(self, rank):
        """The sum as one of them calls it."""

        def add(numbers):
            self._given[rank] = numbers.clone()
            self._barrier.wait()
            numbers.copy_(sum(self._given))
            self._barrier.wait()

        return add


def made_norm(seed):
    """With weights, and running figures that have moved already."""
    torch.manual_seed(seed)
    norm = BatchNorm(WIDTH)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(WIDTH))
        norm.bias.copy_(torch.randn(WIDTH))
        norm.running_mean.copy_(torch.randn(WIDTH))
    return norm


def two_layers(norms, x, readers):
    """Rows normalised, rectified, normalised again; `readers` are how much each row's result weighs in the loss."""
    first = relu_drop(norms[0](x @ torch.full((WIDTH, WIDTH), 0.3)), 0.0)
    return (norms[1](first + x).square() * readers[:, None]).sum()


def at_once(*calls):
    """The results of calls that wait for each other."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def shared_run(x, readers, ids):
    """Two normalisations of rows that each worker has some of: losses, gradients of all rows, norms."""
    world, adding = len(ids), Adding(len(ids))
    counts = np.bincount(np.concatenate(ids), minlength=len(x))
    total = int(np.count_nonzero(counts))

    made = [[made_norm(1), made_norm(2)] for _ in ids]

    def work(rank):
        norms = made[rank]
        own = x[ids[rank]].clone().requires_grad_()
        weights = torch.from_numpy(1.0 / counts[ids[rank]])
        with normalising(SharedBatch([RowShares(weights, total)] * 2, adding.of(rank))) as shared:
            # Of a vertex's readers each worker has some: here as many as any other.
            loss = two_layers(norms, own, readers[ids[rank]] * weights.float())
        shared.joined(loss).backward()
        return loss.detach(), own.grad, norms

    found = at_once(*(lambda rank=rank: work(rank) for rank in range(world)))
    gradient = torch.zeros_like(x)
    for rank, (_, own, _) in enumerate(found):
        gradient.index_add_(0, torch.as_tensor(ids[rank]), own)
    return sum(loss for loss, _, _ in found), gradient, [norms for _, _, norms in found]


@given(rows=st.integers(4, 12), world=st.integers(1, 3), seed=st.integers(0, 999), whole=st.booleans())
@example(rows=12, world=3, seed=1, whole=False)
def test_workers_that_share_rows_compute_what_one_does(rows, world, seed, whole):
    """Also one without rows, and one that has all."""
    rng = np.random.default_rng(seed)
    ids = [np.flatnonzero(rng.random(rows) < rng.choice([0.0, 0.5])) for _ in range(world)]
    ids[0] = np.arange(rows) if whole else np.union1d(ids[0], [0, 1, 2, 3])
    assert_as_one(rng, rows, ids, 0.0, 1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_rows_whose_mean_is_a_thousand_times_their_spread(seed):
    rng = np.random.default_rng(seed)
    assert_as_one(rng, 12, [np.arange(10), np.arange(3, 12), np.arange(5, 7)], 1000.0, 1e-3)


def assert_as_one(rng, rows, ids, mean, tolerance):
    """Losses, gradients and running figures."""
    near = {"rtol": tolerance, "atol": tolerance}
    seen = np.unique(np.concatenate(ids))
    x = torch.from_numpy(rng.normal(mean, 1.0, (rows, WIDTH))).float()
    readers = torch.from_numpy(rng.random(rows)).float()
    loss, gradient, norms = shared_run(x, readers, ids)
    whole, plain = x[seen].clone().requires_grad_(), [made_norm(1), made_norm(2)]
    alone = two_layers(plain, whole, readers[seen])
    alone.backward()
    torch.testing.assert_close(loss, alone.detach(), **near)
    torch.testing.assert_close(gradient[seen], whole.grad, **near)
    for each, norm in enumerate(plain):
        for name, value in norm.state_dict().items():
            torch.testing.assert_close(norms[0][each].state_dict()[name], value, **near)
            for other in norms[1:]:
                assert torch.equal(other[each].state_dict()[name], norms[0][each].state_dict()[name])
        for name in ("weight", "bias"):
            summed = sum(getattr(of_worker[each], name).grad for of_worker in norms)
            torch.testing.assert_close(summed, getattr(norm, name).grad, **near)


def test_fewer_than_two_rows_take_the_running_figures_of_all_workers():
    """Nothing is summed, and nothing moves."""
    norm, x = made_norm(3), torch.ones(1, WIDTH)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    with normalising(
        SharedBatch([RowShares(torch.ones(1).double(), 1), RowShares(torch.ones(0).double(), 1)], None)
    ) as shared:
        found = norm(x)
        norm.without_rows()
    norm.eval()
    assert torch.equal(found, norm(x))
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
    loss = torch.ones((), requires_grad=True)
    assert shared.joined(loss) is loss


def test_a_normalisation_that_the_others_do_not_expect_is_refused():
    norm = made_norm(3)
    for shares in ([], [RowShares(torch.ones(3).double(), 5)]):
        with normalising(SharedBatch(shares, None)), refused("unsupported-combination 2"):
            norm(torch.ones(2, WIDTH))


def test_evaluation_and_other_threads_are_left_alone():
    norm, x = made_norm(3), torch.randn(5, WIDTH)
    norm.without_rows()
    with normalising(SharedBatch([], None)):
        at_once(lambda: norm(x))
        assert norm.num_batches_tracked == 1
        norm.eval()
        norm(x)
        norm.without_rows()
    norm.train()
    with normalising(None):
        norm(x)
    assert norm.num_batches_tracked == 2


def test_sums_that_fail_on_the_way_back_are_heard_as_what_they_are():
    """Workers meet again by the kind of the error."""

    class LostError(Exception):
        pass

    calls = []

    def add(numbers):
        calls.append(numbers)
        if len(calls) == 2:
            raise LostError("a worker was lost")

    norm = made_norm(3)
    with normalising(SharedBatch([RowShares(torch.ones(4).double(), 4)], add)) as shared:
        loss = norm(torch.randn(4, WIDTH)).square().sum()
    with pytest.raises(LostError):
        shared.joined(loss).backward()
