"""Aggregation: equal to dense algebra, its gradients to finite differences, the same on any number of threads."""

import os
import threading
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_blocks import dense, random_block, rows
from torch.autograd import gradcheck

from penstock.nn import aggregate
from penstock.nn.aggregation import gather, transposed
from penstock.nn.derived import with_self_loops, without_empty_rows
from penstock.nn.threads import column_chunks, row_chunks, run_chunks
from penstock.sampling import Block
from refusals import refused


def expected(block, x, reduce):
    """By the estimator convention, with matrices."""
    matrix, x = dense(block), x.double()
    if reduce == "max":
        out = torch.zeros(block.num_dst, x.shape[1]).double()
        for i, (first, last) in enumerate(pairwise(block.indptr)):
            if last > first:
                out[i] = x[block.indices[first:last]].amax(dim=0)
        return out
    drawn = torch.from_numpy(np.diff(block.indptr)).double()[:, None]
    totals = None if block.totals is None else torch.from_numpy(block.totals[: block.num_dst]).double()[:, None]
    if block.weights is None:
        mean = matrix @ x / drawn.clamp(min=1)
        return mean if reduce == "mean" else (matrix @ x if totals is None else mean * totals)
    return matrix @ x if reduce == "sum" else torch.where(totals > 0, matrix @ x / totals.clamp(min=1e-9), 0)


@given(
    st.integers(1, 40),
    st.integers(0, 12),
    st.integers(0, 150),
    st.sampled_from([1, 3, 100]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
def test_equal_to_dense_algebra(num_src, num_dst, edges, width, weights, totals, seed):
    num_dst = min(num_dst, num_src)
    block = random_block(num_src, num_dst, edges if num_dst else 0, weights, totals or weights, seed)
    x = rows(num_src, width, seed, grad=False)
    for reduce in ("mean", "sum", "max"):
        torch.testing.assert_close(aggregate(block, x, reduce), expected(block, x, reduce).float())


@pytest.mark.covering(1)
@pytest.mark.parametrize("reduce", ["mean", "sum", "max"])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("edges", [0, 14])
def test_gradients(reduce, weights, edges):
    block = random_block(edges=edges, weights=weights)
    assert gradcheck(lambda x: aggregate(block, x, reduce), (rows(9, 3, dtype=torch.float64),))
    if not weights:
        bare = random_block(edges=edges, totals=False)
        assert gradcheck(lambda x: aggregate(bare, x, reduce), (rows(9, 3, dtype=torch.float64),))


def test_gradients_of_all_scales():
    block = random_block(weights=True)
    rng = np.random.default_rng(0)
    read, write, own = rng.random(9), rng.random(5), rng.random(5)
    x = rows(9, 3, dtype=torch.float64)
    assert gradcheck(lambda x: gather(block, x, read, write, own), (x,))
    by_hand = torch.from_numpy(write)[:, None] * (dense(block) @ (torch.from_numpy(read)[:, None] * x))
    torch.testing.assert_close(gather(block, x, read, write, own), by_hand + torch.from_numpy(own)[:, None] * x[:5])


@pytest.mark.parametrize("reduce", ["mean", "sum", "max"])
def test_the_same_bits_on_any_number_of_threads(reduce):
    block = random_block(6000, 4000, 40000, weights=reduce == "sum", seed=3)
    assert len(row_chunks(block.indptr, 64)) > 4
    assert len(column_chunks(64, 6000)) > 1
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            x = rows(6000, 64)
            out = aggregate(Block(block.indptr, block.indices, 6000, block.weights, block.totals), x, reduce)
            out.square().sum().backward()
            results.append((out.detach().numpy().tobytes(), x.grad.numpy().tobytes()))
    finally:
        torch.set_num_threads(before)
    assert results[0] == results[1] == results[2]


def test_chunks_cover_all_rows_once_and_share_the_edges():
    block = random_block(6000, 4000, 40000, seed=3)
    chunks = row_chunks(block.indptr, 64)
    assert [first for first, _ in chunks] == [0, *(last for _, last in chunks[:-1])]
    assert chunks[-1][1] == 4000
    work = [block.indptr[last] - block.indptr[first] + last - first for first, last in chunks]
    longest = np.diff(block.indptr).max() + 1
    assert max(work) <= 44000 / len(chunks) + longest
    assert row_chunks(np.zeros(1, np.int64), 64) == [(0, 0)]


def test_an_error_in_a_chunk_reaches_the_caller():
    def work(number, first, last):
        if number == 7:
            raise ValueError("chunk 7")

    with pytest.raises(ValueError, match="chunk 7"):
        run_chunks(work, [(i, i + 1) for i in range(20)])


def test_threads_are_kept_not_made_anew():
    chunks = [(i, i + 1) for i in range(50)]
    used = set()

    def work(*_) -> None:
        used.add(threading.get_ident())

    run_chunks(work, chunks)
    # The process has other threads too, which come and go: only those that have done a chunk are counted.
    for _ in range(20):
        run_chunks(work, chunks)
    assert len(used) <= torch.get_num_threads()


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own():
    done = []
    run_chunks(lambda *_: None, [(i, i + 1) for i in range(50)])
    child = os.fork()
    if child == 0:
        run_chunks(lambda number, *_: done.append(number), [(i, i + 1) for i in range(50)])
        os._exit(0 if sorted(done) == list(range(50)) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_no_gradient_where_none_is_asked_for():
    block = random_block()
    assert not aggregate(block, rows(9, 3, grad=False)).requires_grad


def test_rows_are_read_where_they_lie_and_slices_are_right():
    block = random_block()
    wide = rows(9, 8, grad=False)
    torch.testing.assert_close(aggregate(block, wide[:, 2:5]), aggregate(block, wide)[:, 2:5])


@given(st.integers(1, 20), st.integers(0, 60), st.integers(0, 50))
def test_transposed_lists_hold_the_same_edges(num_src, edges, seed):
    block = random_block(num_src, min(7, num_src), edges, seed=seed)
    lists = transposed(block, num_src)
    assert lists is transposed(block, num_src)
    sources = np.repeat(np.arange(num_src), np.diff(lists.indptr))
    np.testing.assert_array_equal(sources, block.indices[lists.edges])
    np.testing.assert_array_equal(lists.indices, block.destinations()[lists.edges])
    assert sorted(lists.edges) == list(range(edges))


@given(st.integers(0, 60), st.booleans(), st.integers(0, 50))
def test_self_loops_replace_those_there_were(edges, weights, seed):
    block = random_block(9, 5, edges, weights, seed=seed)
    looped = with_self_loops(block)
    matrix = dense(block)
    matrix[:, :5].fill_diagonal_(1)
    torch.testing.assert_close(dense(looped), matrix)
    assert (looped.indices[looped.indptr[1:] - 1] == np.arange(5)).all()


@given(st.integers(0, 20), st.integers(0, 50))
def test_blocks_without_empty_rows(edges, seed):
    block = random_block(9, 7, edges, weights=True, seed=seed)
    filled, kept = without_empty_rows(block)
    assert (np.diff(filled.indptr) > 0).all()
    torch.testing.assert_close(dense(filled), dense(block)[kept])
    np.testing.assert_array_equal(filled.totals, block.totals[kept])


def test_wide_indices_are_read_too():
    narrow, wide = random_block(), random_block(dtype=np.int64)
    torch.testing.assert_close(aggregate(narrow, rows(9, 3)), aggregate(wide, rows(9, 3)))


def test_what_cannot_be_aggregated_is_refused():
    block = random_block(weights=True, totals=False)
    with refused("shape-mismatch 5"):
        aggregate(block, rows(9, 3), "mean")
    with refused("shape-mismatch 9"):
        aggregate(block, rows(8, 3), "sum")
    with refused("unknown-name median"):
        aggregate(block, rows(9, 3), "median")
    with refused("wrong-type torch.float16"):
        aggregate(block, rows(9, 3).half(), "sum")
    with refused("unsupported-combination meta"):
        aggregate(block, torch.empty(9, 3, device="meta"), "sum")
