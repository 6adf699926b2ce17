from itertools import islice

import numpy as np

from penstock.pipeline.schedule import Position, Schedule
from refusals import refused


def test_an_epoch_holds_every_item_once_and_epochs_differ():
    items = np.arange(100, 200)
    schedule = Schedule(items, 30, seed=3, epochs=2)
    planned = list(schedule.from_position())
    assert [len(batch.seeds) for batch in planned] == [30, 30, 30, 10] * 2
    assert [batch.last for batch in planned] == [False, False, False, True] * 2
    first, second = (np.concatenate([b.seeds for b in planned[i : i + 4]]) for i in (0, 4))
    np.testing.assert_array_equal(np.sort(first), items)
    np.testing.assert_array_equal(np.sort(second), items)
    assert not np.array_equal(first, second)


def test_it_can_start_anywhere_and_goes_on_without_end():
    schedule = Schedule(np.arange(10), 4, seed=1)
    whole = list(islice(schedule.from_position(), 12))
    later = list(islice(schedule.from_position(Position(1, 2)), 4))
    for ours, theirs in zip(later, whole[5:9], strict=True):
        assert ours.key == theirs.key
        np.testing.assert_array_equal(ours.seeds, theirs.seeds)


def test_the_order_belongs_to_original_numbers():
    renumbered = np.random.default_rng(0).permutation(50)
    plain = list(islice(Schedule(np.arange(50), 7, seed=2).from_position(), 8))
    moved = list(islice(Schedule(np.arange(50), 7, seed=2, original=renumbered).from_position(), 8))
    for ours, theirs in zip(moved, plain, strict=True):
        np.testing.assert_array_equal(renumbered[ours.seeds], theirs.seeds)


def test_nothing_to_train_on_is_a_sentence():
    with refused("missing-data"):
        Schedule(np.empty(0, np.int64), 4, seed=1)
    with refused("value-out-of-range"):
        Schedule(np.arange(3), 0, seed=1)
