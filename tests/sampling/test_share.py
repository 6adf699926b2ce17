"""A share of a batch: what some seeds reach back to, computed to the same bits, and nothing else."""

import numpy as np
import pytest
from batch_contract import assert_valid_batch, small_graphs
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.sampling import NeighbourSampler
from penstock.sampling.block import BatchKey
from penstock.sampling.cluster import ClusterSampler
from penstock.sampling.layerwise import FastGCN, Ladies
from penstock.sampling.parts.homogeneous import share_of
from penstock.sampling.saint import Saint
from random_graphs import power_law_graph

KEY = BatchKey(2, 0, 1)


def drawn(kind, graph, layers):
    """A batch with as many layers."""
    train, some = graph.split("train"), np.arange(graph.num_nodes)[::3]
    if kind == "saint":
        return Saint(graph, train, "edge", 8, layers=layers).sample(np.array([0]), KEY)
    if kind == "cluster":
        return ClusterSampler(graph, np.arange(graph.num_nodes) % 2, train, layers).sample(np.array([1]), KEY)
    if kind == "neighbour":
        return NeighbourSampler(graph, [2] * layers, totals=True).sample(some, KEY)
    return {"fastgcn": FastGCN, "ladies": Ladies}[kind](graph, [4] * layers).sample(some, KEY)


def computed(batch):
    """Rows of the seeds, every sum in the order of its list."""
    rows = np.sin(np.asarray(batch.vertices["node"], np.float64)).astype(np.float32)
    for block in batch.blocks:
        sums = np.zeros(block.num_dst, np.float32)
        read = rows[block.indices] / np.sqrt(1 + block.totals[block.indices])
        np.add.at(sums, block.destinations(), read if block.weights is None else read * block.weights)
        rows = rows[: block.num_dst] + sums / (1 + block.totals[: block.num_dst])
    return rows


@pytest.mark.parametrize("kind", ["neighbour", "fastgcn", "ladies", "saint", "cluster"])
@given(small_graphs, st.integers(1, 3), st.integers(0, 99))
def test_shares_are_computed_as_the_whole(kind, graph, layers, seed):
    assume(graph.num_edges > 0 and len(graph.split("train")) > 0)
    assume(kind != "saint" or np.isin(graph.split("train"), graph.indices).any())
    batch = drawn(kind, graph, layers)
    whole, places = computed(batch), np.random.default_rng(seed).permutation(len(batch.seeds["node"]))
    for mine in np.array_split(places, 3):
        share = share_of(batch, mine)
        if share.blocks[0].totals is not None:
            assert_valid_batch(graph, share)
        assert share.whole == len(batch.seeds["node"]) and share.key == batch.key
        np.testing.assert_array_equal(share.seeds["node"], batch.seeds["node"][mine])
        np.testing.assert_array_equal(computed(share), whole[mine])
        if batch.seed_weights is not None:
            np.testing.assert_array_equal(share.seed_weights, batch.seed_weights[mine])


def test_nothing_is_kept_that_nobody_reads():
    graph = power_law_graph(400)
    batch = ClusterSampler(graph, np.zeros(400, int), graph.split("train"), layers=1).sample(np.array([0]), KEY)
    share = share_of(batch, np.array([3]))
    own = batch.seeds["node"][3]
    read = graph.indices[graph.indptr[own] : graph.indptr[own + 1]]
    assert set(share.vertices["node"]) == {own, *read} and len(batch.vertices["node"]) == 400
    assert share.blocks[0].num_edges == len(read)


@pytest.mark.parametrize("kind", ["fastgcn", "ladies", "saint", "cluster"])
def test_shares_with_every_row_have_all_that_the_whole_computes(kind):
    graph = power_law_graph(300)
    batch = drawn(kind, graph, 3)
    share = share_of(batch, np.arange(len(batch.seeds["node"]))[::2], every_row=True)
    np.testing.assert_array_equal(computed(share), computed(batch)[::2])
    for ours, above, theirs in zip(share.blocks[:-1], share.blocks[1:], batch.blocks[:-1], strict=True):
        mine = share.vertices["node"][: ours.num_dst]
        np.testing.assert_array_equal(np.sort(mine), np.sort(batch.vertices["node"][: theirs.num_dst]))
        assert above.num_src == ours.num_dst
    assert share.blocks[-1].num_dst == len(share.seeds["node"])


@pytest.mark.parametrize("every_row", [False, True])
@pytest.mark.parametrize("kind", ["saint", "cluster"])
def test_vertices_that_nobody_reads_are_kept_where_asked_for(kind, every_row):
    graph = power_law_graph(300)
    batch = drawn(kind, graph, 2)
    some, asked = np.arange(len(batch.seeds["node"]))[::2], np.flatnonzero(batch.vertices["node"] % 2)
    share = share_of(batch, some, every_row, inputs=asked)
    np.testing.assert_array_equal(computed(share), computed(batch)[some])
    bare = share_of(batch, some, every_row)
    assert set(share.vertices["node"]) == {*bare.vertices["node"], *batch.vertices["node"][asked]}
    assert share.blocks[0].num_src == len(share.vertices["node"]) == len(share.blocks[0].totals)
