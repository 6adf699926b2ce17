"""The shares of a batch: together the whole, none twice, and each worker knows its own."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.worker.batch_source import SeedSplit, vertex_share, whole_batches
from penstock.pipeline.schedule import Planned
from penstock.sampling import BatchKey

speeds = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6)


def drawn(seed, items, count):
    """Training vertices, their numbers in a cut graph, and a batch of them."""
    rng = np.random.default_rng(seed)
    vertices = np.sort(rng.choice(10 * items, items, replace=False))
    new = rng.permutation(10 * items)[:items]
    batch = rng.choice(vertices, min(count, items), replace=False)
    return vertices, new, Planned(BatchKey(0, 0, 0), batch, False)


@given(speeds, st.integers(0, 1 << 20), st.integers(1, 60), st.integers(1, 60))
def test_shares_are_the_batch(speeds, seed, items, count):
    vertices, new, batch = drawn(seed, items, count)
    shares = [speed / sum(speeds) for speed in speeds]
    given = [SeedSplit(vertices, new, shares, rank).share(batch) for rank in range(len(shares))]
    worker_group = np.concatenate([each.seeds for each in given])
    assert sorted(worker_group) == sorted(batch.seeds)
    assert {each.whole for each in given} == {len(batch.seeds)}
    for share, each in zip(shares, given, strict=True):
        assert abs(len(each.seeds) - share * len(batch.seeds)) <= 1
        assert each.key == batch.key and each.last == batch.last
    if len(shares) > 1:
        # In the order of parts: a worker's seeds are a range of new numbers.
        places = new[np.searchsorted(vertices, worker_group)]
        assert (np.diff(places) > 0).all()
    else:
        assert np.array_equal(worker_group, batch.seeds)


@given(st.integers(1, 8), st.integers(0, 1 << 20), st.integers(1, 60), st.integers(1, 60))
def test_equal_workers_have_equal_shares(world, seed, items, count):
    vertices, new, batch = drawn(seed, items, count)
    sizes = [len(SeedSplit(vertices, new, [1 / world] * world, rank).share(batch).seeds) for rank in range(world)]
    assert max(sizes) - min(sizes) <= 1


@given(speeds, st.integers(0, 1 << 20), st.integers(1, 60))
def test_vertices_that_a_batch_turns_out_to_have_are_shared_as_seeds_are(speeds, seed, count):
    vertices, new, batch = drawn(seed, 60, count)
    shares = [speed / sum(speeds) for speed in speeds]
    numbers = new[np.searchsorted(vertices, batch.seeds)]
    for rank in range(len(shares)):
        share = vertex_share(shares, rank)
        places = np.arange(len(numbers)) if share is None else share(numbers)
        np.testing.assert_array_equal(places, SeedSplit(vertices, new, shares, rank).places(batch))


@given(st.integers(2, 5), st.integers(0, 1 << 20))
def test_asking_changes_nothing(world, seed):
    vertices, new, batch = drawn(seed, 40, 20)
    split = SeedSplit(vertices, new, [1 / world] * world, 1)
    before, seeds = split.share(batch), batch.seeds.copy()
    split.share(drawn(seed, 40, 7)[2])
    again = split.share(batch)
    assert np.array_equal(before.seeds, again.seeds) and np.array_equal(batch.seeds, seeds)


def test_the_part_of_a_batch_that_is_left():
    """A task that takes its share when it draws is left the whole: what it draws is scaled by nobody."""
    items = np.arange(100)
    assert [SeedSplit(items, items, [0.25, 0.75], rank).part for rank in range(2)] == [0.25, 0.75]
    assert SeedSplit(items, items, [1.0], 0).part == whole_batches(items).part == 1.0
