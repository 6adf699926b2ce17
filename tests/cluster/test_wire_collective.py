"""Sums and gathers over the wire: by rank, once, and never for ever."""

from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_worker_group import at_once
from wired import team_of, template_for, wired

from penstock.cluster.rendezvous import Rendezvous
from penstock.cluster.worker.collectives import WireGroup
from penstock.train.steps.group import RegroupError
from penstock.wire.message import Message
from refusals import refused


@pytest.fixture
def three():
    """A meeting and three workers who have met, with their mailboxes."""
    meeting = Rendezvous(3)
    endpoint, members = wired(template_for(3), meeting.handlers(), (0, 1, 2))
    with ExitStack() as stack:
        stack.enter_context(endpoint)
        for member in members:
            stack.enter_context(member)
        teams = [team_of(member) for member in members]
        at_once(*(lambda team=team: team.meet(0) for team in teams))
        yield SimpleNamespace(meeting=meeting, members=members, teams=teams)


def groups_of(three, generation=None):
    """Every worker's group."""
    pairs = zip(three.members, three.teams, strict=True)
    return [WireGroup(member, generation or team.generation, team.collective) for member, team in pairs]


def sent(three, sender, receiver, generation, number, *arrays):
    """A letter that a worker sends by itself."""
    channel = three.members[sender].endpoint.channel(f"worker-{receiver}", "letters")
    return channel.call(Message("numbers", {"generation": generation, "number": number}, arrays), 5.0)


def test_sums_in_the_order_of_ranks(three):
    """Large and small numbers cancel only in one order; a sum after the other, of any shape."""
    groups, given = groups_of(three), [torch.tensor([[1e30, 1.0]]), torch.tensor([[-1e30, 2.0]]), torch.ones(1, 2)]
    for _ in range(3):
        numbers = [each.clone() for each in given]
        at_once(*(lambda pair=pair: pair[0].sum(pair[1]) for pair in zip(groups, numbers, strict=True)))
        assert all(torch.equal(each, torch.tensor([[1.0, 4.0]])) for each in numbers)


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_long_rows_are_summed_in_shares_to_the_same_bits(three, count, monkeypatch):
    """Every worker sums a share; each number is added up in the order of ranks, as where all is sent to everybody."""
    monkeypatch.setattr("penstock.cluster.worker.collectives._SHARED", 1)
    generator = torch.Generator().manual_seed(count)
    given = [torch.randn(count, generator=generator) * 10.0**rank for rank in range(3)]
    expected = (given[0] + given[1]) + given[2]
    groups = groups_of(three)
    for _ in range(3):
        numbers = [each.clone() for each in given]
        at_once(*(lambda pair=pair: pair[0].sum(pair[1]) for pair in zip(groups, numbers, strict=True)))
        assert all(torch.equal(each, expected) for each in numbers)


@pytest.mark.parametrize("shared", [1, 1 << 14])
def test_sums_that_are_begun_end_in_any_order_beside_others(three, shared, monkeypatch):
    monkeypatch.setattr("penstock.cluster.worker.collectives._SHARED", shared)
    groups = groups_of(three)

    def work(rank):
        numbers = [torch.full((5,), float(10**place * (rank + 1))) for place in range(4)]
        first, second = (groups[rank].start_sum(numbers[place]) for place in (0, 1))
        groups[rank].sum(numbers[2])
        third = groups[rank].start_sum(numbers[3])
        for finish in (second, third, first):
            finish()
        groups[rank].sum(torch.zeros(2))
        return [each.tolist() for each in numbers]

    for found in at_once(*(lambda rank=rank: work(rank) for rank in range(3))):
        assert found == [[6.0 * 10**place] * 5 for place in range(4)]


def test_shares_are_what_is_sent(three, monkeypatch):
    """Of n numbers a worker sends two thirds in each of two exchanges, not all of them to each of the others."""
    groups, numbers = groups_of(three), [torch.ones(1 << 16) for _ in range(3)]
    at_once(*(lambda pair=pair: pair[0].sum(pair[1]) for pair in zip(groups, numbers, strict=True)))
    sums = [f for f in three.members[0].endpoint.flows() if f.name.startswith("worker-0>") and f.name.endswith("/sums")]
    assert sum(flow.sent_bytes for flow in sums) < 1.05 * 4 / 3 * numbers[0].nbytes


def test_rows_of_different_lengths_are_gathered(three):
    given = [torch.arange(4), torch.arange(0), torch.tensor([1 << 60])]
    found = at_once(*(lambda pair=pair: pair[0].gather(pair[1]) for pair in zip(groups_of(three), given, strict=True)))
    for each in found:
        assert all(torch.equal(*pair) for pair in zip(each, given, strict=True))


def test_arrays_that_come_early_late_or_twice(three):
    """Of a round that a worker has not come to yet, of one that is over, and of a number that was taken."""
    for number in (0, 0, 1):
        for rank in (1, 2):
            sent(three, rank, 0, 5, number, np.full(2, 10.0 * rank + number))
    sent(three, 1, 0, 4, 0, np.zeros(2))
    collective = three.teams[0].collective
    assert collective.take(4, 0, 0.0) is None
    collective.begin(5)
    assert collective.take(5, 0, 0.0)[2].tolist() == [20.0, 20.0]
    sent(three, 1, 0, 5, 0, np.zeros(2))
    assert collective.take(5, 0, 0.0) is None
    assert collective.take(5, 1, 0.0)[1].tolist() == [11.0, 11.0]
    sent(three, 1, 0, 5, 1000, np.zeros(2))
    assert not collective._arrays


@pytest.mark.parametrize("arrays", [(), (np.zeros((2, 2)),), (np.zeros(2, np.int8),), (np.zeros(2), np.zeros(2))])
def test_what_is_not_a_flat_array_is_refused(three, arrays):
    with refused("malformed-message worker-1"):
        sent(three, 1, 0, 1, 0, *arrays)


def test_workers_that_sum_other_numbers_are_told(three):
    groups = groups_of(three)
    numbers = [torch.ones(2), torch.ones(3), torch.ones(2, dtype=torch.float64)]
    found = at_once(*(lambda pair=pair: pair[0].sum(pair[1]) for pair in zip(groups, numbers, strict=True)))
    assert all(each.code == "malformed-message" for each in found)


def test_who_waits_for_a_lost_worker_meets_again(three):
    first, second, _ = groups_of(three)
    three.meeting.rounds.lose(2)
    found = at_once(lambda: first.sum(torch.ones(2)), lambda: second.gather(torch.ones(2)))
    assert all(isinstance(each, RegroupError) for each in found)


def test_who_waits_when_the_run_ends(three):
    for member in three.members:
        member.stopped.set()
    with pytest.raises(RegroupError):
        groups_of(three)[0].sum(torch.ones(2))
