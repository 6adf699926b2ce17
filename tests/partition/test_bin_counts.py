"""Bins and the rows between workers, against counting one by one."""

import numpy as np
import pytest

from penstock.partition.bins import count_bins, edges_to_sum, levels_reached, share_parts

WORKERS, LAYERS = 3, 3


def lists(count=60, edges=240, seed=1):
    """In-neighbour lists of a random graph, sorted and without repeats."""
    draws = np.random.default_rng(seed)
    pairs = np.unique(draws.integers(0, count, (edges, 2)), axis=0)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(pairs[:, 0], minlength=count))])
    return indptr, pairs[:, 1].astype(np.int32)


def neighbours(indptr, indices, v):
    return indices[indptr[v] : indptr[v + 1]].tolist()


@pytest.fixture
def graph():
    return lists()


@pytest.fixture
def owner():
    return np.random.default_rng(2).integers(0, WORKERS, 60).astype(np.int32)


def test_levels_are_those_that_the_wanted_vertices_reach(graph):
    wanted = {3, 7}
    levels = [wanted]
    for _ in range(LAYERS):
        levels.insert(0, levels[0] | {u for v in levels[0] for u in neighbours(*graph, v)})
    last = levels_reached(*graph, np.array(sorted(wanted)), LAYERS)
    for number, vertices in enumerate(levels):
        assert set(np.flatnonzero(last >= number)) == vertices


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("bins", [1, 2, 5])
def test_rows_and_edges_add_up_to_the_graph(graph, owner, bins, eager):
    last = levels_reached(*graph, np.arange(0, 60, 7), LAYERS)
    found = count_bins(*graph, owner, WORKERS, last, bins, eager)
    degrees = np.diff(graph[0])
    for number, layer in enumerate(found.layers):
        mine = last > number
        np.testing.assert_array_equal(layer.rows.sum(1), np.bincount(owner[mine], minlength=WORKERS))
        edges = np.bincount(owner[mine], weights=degrees[mine], minlength=WORKERS)
        np.testing.assert_array_equal(layer.edges.sum(1), edges)
        if bins > 1:
            assert (layer.edges + layer.rows).max() < edges.max() / bins + degrees.max() + 60 / bins


def test_inputs_are_the_different_rows_that_a_bin_reads(graph, owner):
    """Its own rows among them, as layers read those, too."""
    last = np.full(60, LAYERS)
    (first, *_) = count_bins(*graph, owner, WORKERS, last, 1).layers
    for worker in range(WORKERS):
        mine = np.flatnonzero(owner == worker)
        assert first.inputs[worker, 0] == len({*mine, *(u for v in mine for u in neighbours(*graph, v))})
    several = count_bins(*graph, owner, WORKERS, last, 4).layers[0].inputs
    assert (several.sum(1) > first.inputs[:, 0]).all() and (several.max(1) <= first.inputs[:, 0]).all()
    # Of sums, which replace rows, readers read one for each sender: never more than the rows.
    summed = count_bins(*graph, owner, WORKERS, last, 1, sums=True).layers[1].inputs
    assert (summed <= count_bins(*graph, owner, WORKERS, last, 1).layers[1].inputs + np.bincount(owner)[:, None]).all()


@pytest.mark.parametrize("again", [-1, 3])
def test_rows_cross_once_for_each_reading_worker(graph, owner, again):
    last = levels_reached(*graph, np.arange(0, 60, 7), LAYERS)
    found = count_bins(*graph, owner, WORKERS, last, 4, again_degree=again)
    for number in range(LAYERS):
        pairs = {
            (int(u), int(owner[v]))
            for v in np.flatnonzero(last > number)
            for u in neighbours(*graph, v)
            if owner[u] != owner[v]
        }
        computed = {pair for pair in pairs if number == 1 and np.diff(graph[0])[pair[0]] <= again}
        matrix = np.zeros((WORKERS, WORKERS), np.int64)
        for u, worker in pairs - computed:
            matrix[owner[u], worker] += 1
        above = found.layers[number]
        np.testing.assert_array_equal(above.returned.sum(1), matrix.T)
        np.testing.assert_array_equal(above.halo, [sum(q == w for _, q in pairs) for w in range(WORKERS)])
        if number == 0:
            np.testing.assert_array_equal(found.inputs, matrix)
            continue
        below = found.layers[number - 1]
        np.testing.assert_array_equal(below.sent.sum(1), matrix)
        assert below.again[:, 0].sum() == len(computed)
        assert below.again[:, 1].sum() == sum(np.diff(graph[0])[u] for u, _ in computed)
        # What a bin waits for was sent, and what a gradient waits for comes back.
        for reader, own, sender in np.argwhere(above.needed >= 0):
            assert below.sent[sender, above.needed[reader, own, sender], reader] > 0
        for sender, own, reader in np.argwhere((below.awaited >= 0) & (below.awaited < 4)):
            assert above.returned[reader, below.awaited[sender, own, reader], sender] > 0


def test_gradients_are_complete_after_the_last_bin_that_reads_a_row():
    """Border rows come first in a middle layer, or last where bins that wait for no message come first: in either case
    the backward pass begins with them."""
    count, ring = 90, np.arange(90)
    pairs = np.concatenate([[ring, np.roll(ring, 1)], [np.roll(ring, 1), ring]], axis=1)
    order = np.lexsort((pairs[0], pairs[1]))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(pairs[1], minlength=count))])
    graph, owner = (indptr, pairs[0][order].astype(np.int32)), (ring * WORKERS // count).astype(np.int32)
    levels = np.full(count, LAYERS, np.int8)
    for eager in (True, False):
        found = count_bins(*graph, owner, WORKERS, levels, 5, eager)
        middle = found.layers[1]
        assert not found.layers[0].onward.any() and middle.onward.all() == (not eager)
        # Two neighbours of every worker's range, whose gradients leave after the first bin of the backward pass.
        np.testing.assert_array_equal(middle.returned.sum(2)[:, -1 if eager else 0], 2)
        border = 4 if eager else 0
        assert set(found.layers[0].awaited[found.layers[0].sent > 0].tolist()) == {border}
        reverse = count_bins(*graph, owner, WORKERS, levels, 5, eager, by_bin=False)
        assert not any(layer.onward.any() for layer in reverse.layers)
        for ours, plain in zip(found.layers, reverse.layers, strict=True):
            np.testing.assert_array_equal(ours.returned.sum(1), plain.returned.sum(1))


def test_sums_are_counted_as_one_row_each(graph, owner):
    last = levels_reached(*graph, np.arange(0, 60, 7), LAYERS)
    plain, found = (count_bins(*graph, owner, WORKERS, last, 4, sums=sums) for sums in (False, True))
    np.testing.assert_array_equal(found.inputs, plain.inputs)
    for number in range(1, LAYERS):
        edges = [
            (int(u), int(v))
            for v in np.flatnonzero(last > number)
            for u in neighbours(*graph, v)
            if owner[u] != owner[v]
        ]
        u, v = np.array(edges).T
        pairs = owner[u] * WORKERS + owner[v]
        summed = edges_to_sum(u * WORKERS + owner[v], v * WORKERS + owner[u], pairs)
        rows = {(owner[a], owner[b], a) for (a, b), inside in zip(edges, summed, strict=True) if not inside}
        sums = {(owner[a], owner[b], -1 - b) for (a, b), inside in zip(edges, summed, strict=True) if inside}
        matrix = np.zeros((WORKERS, WORKERS), np.int64)
        for sender, reader, _ in rows | sums:
            matrix[sender, reader] += 1
        above, below = found.layers[number], found.layers[number - 1]
        np.testing.assert_array_equal(below.sent.sum(1), matrix)
        np.testing.assert_array_equal(above.returned.sum(1), matrix.T)
        assert matrix.sum() < plain.layers[number - 1].sent.sum()
        for reader, own, sender in np.argwhere(above.needed >= 0):
            assert below.sent[sender, above.needed[reader, own, sender], reader] > 0
        for sender, own, reader in np.argwhere((below.awaited >= 0) & (below.awaited < 4)):
            assert above.returned[reader, below.awaited[sender, own, reader], sender] > 0


def test_rows_that_others_read_come_first_and_eager_bins_wait_for_later_and_later_ones(graph, owner):
    last = np.full(60, 2, np.int8)
    found = count_bins(*graph, owner, WORKERS, last, 6)
    sent = found.layers[0].sent.sum(2)
    assert (sent[:, 0] >= sent[:, -1]).all()
    ready = found.layers[1].needed.max(2)
    assert (np.diff(ready, axis=1) >= 0).all()


def test_workers_of_a_part_share_it_by_loads():
    part_of = np.repeat([0, 1], 50)
    loads = np.where(np.arange(100) < 10, 10, 1)
    owner = share_parts(part_of, np.array([2, 1]), loads)
    assert set(owner[:50]) == {0, 1} and set(owner[50:]) == {2}
    shares = [loads[owner == worker].sum() for worker in range(2)]
    assert abs(shares[0] - shares[1]) <= 10
