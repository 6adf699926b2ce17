"""Dropout by a hash: the right share, the right expectation, repeatable, the same on any number of threads."""

import numpy as np
import pytest
import torch
from random_blocks import random_block, rows
from torch.autograd import gradcheck

from penstock.nn.device.drop import DropKey
from penstock.nn.drop import _Drop, drop, drop_edges, dropping, relu_drop
from penstock.nn.threads import plain_chunks
from penstock.sampling import Block
from refusals import refused


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_share_is_dropped_and_the_rest_scaled(share):
    torch.manual_seed(0)
    count = 400_000
    out = drop(torch.ones(4000, 100), share)
    kept = out > 0
    # Five standard deviations of a binomial share.
    assert abs(float((~kept).float().mean()) - share) < 5 * np.sqrt(share * (1 - share) / count)
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / (1 - share)), rtol=1e-3, atol=0)
    # No column and no row is favoured.
    for dim, size in ((0, 4000), (1, 100)):
        spread = ((~kept).float().mean(dim=dim) - share).abs().max()
        assert spread < 5.5 * np.sqrt(share * (1 - share) / size)


def test_neighbouring_numbers_are_independent():
    torch.manual_seed(0)
    kept = (drop(torch.ones(4000, 100), 0.5) > 0).double() - 0.5
    for shift in (1, 2, 3, 4):
        assert abs(float((kept[:, shift:] * kept[:, :-shift]).mean())) < 5 * 0.25 / np.sqrt(kept[:, shift:].numel())
    assert abs(float((kept[1:] * kept[:-1]).mean())) < 5 * 0.25 / np.sqrt(kept[1:].numel())


def test_gradients():
    x = rows(7, 5, dtype=torch.float64)
    assert gradcheck(lambda x: _Drop.apply(x, 0.4, DropKey(3)), (x,))
    torch.manual_seed(0)
    out = relu_drop(x * 1, 0.4)
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(out, grad * x)
    torch.manual_seed(0)
    torch.testing.assert_close(out, drop(x.relu(), 0.4))


def test_nothing_dropped_is_the_rectifier():
    torch.testing.assert_close(relu_drop(rows(7, 5) * 1, 0.0), rows(7, 5).relu())
    x = rows(7, 5)
    assert drop(x, 0.0) is x


def test_torch_s_seed_repeats_it_and_every_call_differs():
    torch.manual_seed(5)
    one, two = drop(torch.ones(50, 20), 0.5), drop(torch.ones(50, 20), 0.5)
    torch.manual_seed(5)
    assert torch.equal(one, drop(torch.ones(50, 20), 0.5))
    assert not torch.equal(one, two)


def test_the_same_on_any_number_of_threads():
    assert len(plain_chunks(20000, 67)) > 4
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            results.append(relu_drop(rows(20000, 67, grad=False), 0.3))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("width", [1, 4, 33])
def test_a_vertex_loses_the_same_numbers_in_any_row(width):
    rng = np.random.default_rng(width)
    names, order = rng.permutation(10**6)[:500], rng.permutation(500)[:300]
    x = rows(500, width, grad=False)
    with dropping(7, names):
        whole = drop(x, 0.4), relu_drop(x * 1, 0.3)
    for dtype in (np.int32, np.int64):
        with dropping(7, names[order].astype(dtype)):
            part = drop(x[order], 0.4), relu_drop(x[order] * 1, 0.3)
        for mine, theirs in zip(part, whole, strict=True):
            assert torch.equal(mine, theirs[order])


def test_without_names_a_row_is_named_by_its_place():
    ones, names = torch.ones(40, 10), np.arange(40)[::-1]
    with dropping(7):
        right = drop(ones, 0.5)
    with dropping(7, np.arange(40)):
        assert torch.equal(drop(ones, 0.5), right)
    with dropping(7, names):
        assert torch.equal(drop(ones, 0.5), right.flip(0))
    with dropping(7, names[1:]):  # rows of something else than the batch's vertices
        assert torch.equal(drop(ones, 0.5), right)


def test_vertices_are_dropped_independently():
    names = np.arange(4000) * 1000 + 17
    with dropping(3, names):
        kept = (drop(torch.ones(4000, 100), 0.5) > 0).double() - 0.5
    deviation = 0.5 / np.sqrt(kept.numel())
    assert abs(float(kept.mean())) < 5 * deviation
    assert abs(float((kept[1:] * kept[:-1]).mean())) < 5 * 0.25 / np.sqrt(kept[1:].numel())
    assert abs(float((kept[:, 4:] * kept[:, :-4]).mean())) < 5 * 0.25 / np.sqrt(kept[:, 4:].numel())


def test_gradients_by_name():
    x, names = rows(7, 5, dtype=torch.float64), torch.tensor([4, 900, 3, 3, 2**50, 0, 1])
    assert gradcheck(lambda x: _Drop.apply(x, 0.4, DropKey(3, names=names)), (x,))


def test_an_edge_is_named_by_its_ends():
    block, names = random_block(9, 5, 30), np.random.default_rng(1).permutation(10**6)[:9]
    edges = list(zip(block.destinations(), block.indices, strict=True))
    with dropping(7, names):
        kept = drop_edges(block, torch.ones(30, 6), 0.5)
    by_ends = {}
    for edge, row in zip(edges, kept, strict=True):
        assert torch.equal(by_ends.setdefault(edge, row), row)
    assert len({tuple(row.tolist()) for row in by_ends.values()}) > len(by_ends) // 2
    # The same vertices in other rows: destinations 4 ... 0, sources behind them turned round too.
    order = np.concatenate([np.arange(5)[::-1], np.arange(5, 9)[::-1]])
    place = np.argsort(order)
    lists = [place[block.indices[block.indptr[i] : block.indptr[i + 1]]] for i in order[:5]]
    turned = Block(np.cumsum([0, *map(len, lists)]), np.concatenate(lists), 9)
    with dropping(7, names[order]):
        again = drop_edges(turned, torch.ones(30, 6), 0.5)
    for i, j, row in zip(order[turned.destinations()], order[turned.indices], again, strict=True):
        assert torch.equal(row, by_ends[i, j])


def test_edges_without_names_go_by_their_place():
    block = random_block(9, 5, 30)
    for names in (None, np.arange(8)):
        with dropping(7, names):
            got = drop_edges(block, torch.ones(30, 6), 0.5)
        with dropping(7):
            assert torch.equal(got, drop(torch.ones(30, 6), 0.5))
    assert drop_edges(block, got, 0.0) is got


def test_what_cannot_be_dropped_is_refused():
    with refused("unsupported-combination meta"):
        drop(torch.empty(3, 2, device="meta"), 0.5)
    with refused("shape-mismatch"):
        drop(torch.ones(3), 0.5)
