"""Aggregates straight from a table are those of gathered rows, bit for bit, and float16 is widened exactly."""

import numpy as np
import pytest
import torch

from penstock.nn import table_aggregation
from penstock.nn.aggregation import aggregate_beside, normalised_sum
from penstock.nn.table_aggregation import aggregate_table, shared_aggregation, table_lists, widened_rows
from penstock.sampling.block import Block

WIDTHS = [1, 7, 128]


def random_block(rng, sources=300, destinations=120, weighted=False):
    lengths = rng.integers(0, 12, destinations)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = rng.integers(0, sources, indptr[-1]).astype(np.int32)
    weights = rng.random(indptr[-1], np.float32) if weighted else None
    return Block(indptr, indices, sources, weights, (rng.integers(0, 50, sources) + 0.0))


@pytest.mark.covering(1)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_a_table_are_those_of_gathered_rows(width, dtype, weighted):
    rng = np.random.default_rng(width)
    block = random_block(rng, weighted=weighted)
    table = (8 * rng.standard_normal((1000, width))).astype(dtype)
    # Row numbers have 64 bits only in tables of more than 2**31 rows.
    ids = rng.permutation(1000)[: block.num_src].astype(np.int64 if dtype is np.float32 else np.int32)
    gathered = torch.from_numpy(table[ids].astype(np.float32))
    out, own = (np.full((block.num_dst, width), np.nan, np.float32) for _ in range(2))
    widened_rows(table, ids[: block.num_dst], own)
    for what in ("mean", "sum"):
        expected, beside = aggregate_beside(block, gathered, what)
        aggregate_table(block, what, table, ids, out)
        assert np.array_equal(out, expected.numpy())
        assert np.array_equal(own, beside.numpy())
        last = np.full((20, width), np.nan, np.float32)
        aggregate_table(block, what, table, ids, last, block.num_dst - 20)
        assert np.array_equal(last, out[-20:])
    aggregate_table(block, "normalised", table, ids, out)
    assert np.array_equal(out, normalised_sum(block, gathered).numpy())
    aggregate_table(block, "normalised", table, ids, last, block.num_dst - 20)
    assert np.array_equal(last, out[-20:])


@pytest.mark.parametrize("what", ["mean", "sum", "normalised"])
def test_threads_that_take_turns_make_the_same_sums(what):
    rng = np.random.default_rng(3)
    block, table = random_block(rng), rng.standard_normal((1000, 16)).astype(np.float16)
    ids = rng.permutation(1000)[: block.num_src].astype(np.int32)
    whole, part = np.empty((block.num_dst, 16), np.float32), np.full((80, 16), np.nan, np.float32)
    aggregate_table(block, what, table, ids, whole)
    lists = table_lists(block, what, ids)
    work = shared_aggregation(lists, what, table_aggregation.readable(table), part, 30, 110, 7)
    work()
    assert np.array_equal(part, whole[30:110])
    if what != "normalised":
        named = lists._replace(indices=ids[block.indices], ids=np.empty(0, np.int32))
        part[:] = np.nan
        shared_aggregation(named, what, table_aggregation.readable(table), part, 30, 110, 7)()
        assert np.array_equal(part, whole[30:110])


def test_bfloat16_is_read_by_its_bits():
    values = torch.randn(50, 5).bfloat16()
    wide = np.empty((50, 5), np.float32)
    widened_rows(values.view(torch.int16).numpy(), np.arange(50), wide)
    assert np.array_equal(wide, values.float().numpy())


def test_every_float16_is_widened_exactly():
    patterns = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(-1, 64)
    wide = np.empty(patterns.shape, np.float32)
    widened_rows(patterns, np.arange(len(patterns)), wide)
    with np.errstate(invalid="ignore"):
        expected = patterns.astype(np.float32)
    assert np.array_equal(wide, expected, equal_nan=True)
    assert np.array_equal(np.signbit(wide), np.signbit(expected))
    by_bits = np.array([table_aggregation._by_bits(each) for each in patterns.view(np.uint16).reshape(-1)[::7]])
    assert np.array_equal(by_bits, expected.reshape(-1)[::7], equal_nan=True)


def test_a_block_without_rows_or_edges():
    table = np.ones((5, 3), np.float32)
    empty = Block(np.zeros(1, np.int64), np.zeros(0, np.int32), 0)
    aggregate_table(empty, "mean", table, np.zeros(0, np.int64), np.empty((0, 3), np.float32))
    lonely = Block(np.zeros(3, np.int64), np.zeros(0, np.int32), 2)
    out = np.full((2, 3), np.nan, np.float32)
    aggregate_table(lonely, "mean", table, np.array([1, 4]), out)
    assert (out == 0).all()
