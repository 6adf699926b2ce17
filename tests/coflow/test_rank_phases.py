"""The phases as ranks see them: both sides agree, rows are whole, nobody waits for ever."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from matrices import KINDS

from penstock.coflow import SCHEDULES, schedule
from penstock.coflow.exchange import phases_of_rank
from refusals import refused

MATRICES = st.integers(1, 5).flatmap(
    lambda ranks: arrays.arrays(np.int64, (ranks, ranks), elements=st.integers(0, 12) | st.just(0))
)


def all_turns(matrix, name, granularity=1, max_phases=None):
    return [phases_of_rank(matrix, rank, name, granularity, max_phases) for rank in range(len(matrix))]


def slices(turns, side, peer):
    return [(each.first, each.last) for _, each in numbered(turns, side, peer)]


def numbered(turns, side, peer):
    return [(turn.phase, each) for turn in turns for each in getattr(turn, side) if each.peer == peer]


@given(MATRICES, st.sampled_from(list(SCHEDULES)), st.integers(1, 5))
def test_both_sides_agree_and_every_row_goes_once(matrix, name, granularity):
    turns = all_turns(matrix, name, granularity)
    for sender in range(len(matrix)):
        for receiver in range(len(matrix)):
            sent = slices(turns[sender], "sends", receiver)
            assert sent == slices(turns[receiver], "receives", sender)
            phases = [phase for phase, _ in numbered(turns[sender], "sends", receiver)]
            assert phases == [phase for phase, _ in numbered(turns[receiver], "receives", sender)]
            ends = [0, *(last for _, last in sent)]
            assert [first for first, _ in sent] == ends[:-1]
            assert ends[-1] == (0 if sender == receiver else matrix[sender, receiver])
            if name != "fair":
                assert all(end % granularity == 0 for end in ends[:-1])


@given(MATRICES, st.sampled_from(list(SCHEDULES)))
def test_nobody_waits_for_ever(matrix, name):
    """A turn ends when what it sends and receives has been posted by the other side too; all come to their end."""
    turns, at = all_turns(matrix, name), [0] * len(matrix)

    def posted(rank, side, peer):
        return len(slices(turns[rank][: at[rank] + 1], side, peer))

    moved = True
    while moved:
        moved = False
        for rank, own in enumerate(turns):
            if at[rank] == len(own):
                continue
            turn = own[at[rank]]
            ready = all(posted(each.peer, "receives", rank) >= posted(rank, "sends", each.peer) for each in turn.sends)
            ready &= all(
                posted(each.peer, "sends", rank) >= posted(rank, "receives", each.peer) for each in turn.receives
            )
            at[rank] += ready
            moved |= ready
    assert at == [len(own) for own in turns]


@pytest.mark.parametrize("name", ["matched", "bvn"])
def test_phases_are_as_few_as_asked_for(name):
    matrix = KINDS[0](8, np.random.default_rng(3))
    np.fill_diagonal(matrix, 0)
    assert len(schedule(matrix, name)) > 12
    for rank, turns in enumerate(all_turns(matrix, name, max_phases=12)):
        assert 7 <= len(turns) <= 12
        assert (
            sum(last - first for peer in range(8) for first, last in slices(turns, "sends", peer)) == matrix[rank].sum()
        )


def test_what_cannot_be_is_refused():
    matrix = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0]])
    with refused("value-out-of-range 1"):
        phases_of_rank(matrix, 0, "bvn", 1, 1)
    with refused("value-out-of-range 0"):
        phases_of_rank(matrix, 0, "bvn", 0, None)


def test_equal_sizes_are_scheduled_once():
    matrix = KINDS[0](6, np.random.default_rng(4))
    assert phases_of_rank(matrix, 2, "bvn", 1, None) is phases_of_rank(matrix.astype(np.int32), 2, "bvn", 1, None)
    assert phases_of_rank(matrix, 2, "bvn", 1, None) is not phases_of_rank(matrix, 3, "bvn", 1, None)
