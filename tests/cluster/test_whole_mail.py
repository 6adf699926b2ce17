"""Lists and rows that workers who train on one whole graph send each other over the wire."""

from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest
from test_worker_group import at_once
from wired import team_of, template_for, wired

from penstock.cluster.rendezvous import Rendezvous
from penstock.cluster.worker import whole
from penstock.cluster.worker.whole import WireListExchange, WireRowMail
from penstock.pipeline.schedule import Position
from penstock.train.steps.group import RegroupError
from penstock.train.whole.shared.interfaces import Tag
from penstock.wire.message import Message
from refusals import refused

TAG = Tag(False, 1, 0)


@pytest.fixture
def two():
    """A meeting and two workers who have met, with what they send by."""
    meeting = Rendezvous(2)
    endpoint, members = wired(template_for(2), meeting.handlers(), (0, 1))
    with ExitStack() as stack:
        stack.enter_context(endpoint)
        for member in members:
            stack.enter_context(member)
        teams = [team_of(member) for member in members]
        at_once(*(lambda team=team: team.meet(0) for team in teams))
        mails = [mail_of(member, team) for member, team in zip(members, teams, strict=True)]
        for team, mail in zip(teams, mails, strict=True):
            team.rows.begin_round(team.generation)
            mail.begin(Position(0, 0))
        yield SimpleNamespace(meeting=meeting, members=members, teams=teams, mails=mails)


def mail_of(member, team):
    def check():
        if not team.holds():
            raise RegroupError

    return WireRowMail(member, team.rows, lambda: team.generation, check)


def taken(mail, rank, tag):
    while (found := mail.take(rank, tag)) is None:
        mail.wait()
    return found


def test_rows_arrive_in_pieces_and_once(two, monkeypatch):
    monkeypatch.setattr(whole, "_PIECE", 64)
    rows = np.arange(60, dtype=np.float32).reshape(20, 3), np.empty((0, 3), np.float32)
    two.mails[0].post(1, TAG, rows)
    two.mails[0].end()
    found = taken(two.mails[1], 0, TAG)
    assert all(np.array_equal(*pair) for pair in zip(found, rows, strict=True))
    assert two.mails[1].take(0, TAG) is None
    assert two.teams[1].rows.received == two.teams[1].rows.minimum == rows[0].nbytes


def test_rows_of_the_next_step_wait_and_those_of_the_last_are_dropped(two):
    first, second = two.mails
    first.post(1, TAG, [np.ones((1, 1), np.float32)])
    first.end()
    first.begin(Position(0, 1))
    first.post(1, TAG, [np.full((1, 1), 2, np.float32)])
    first.end()
    second.begin(Position(0, 1))
    assert taken(second, 0, TAG)[0].item() == 2
    second.begin(Position(0, 0))
    assert second.take(0, TAG) is None


def test_rows_of_an_earlier_round_are_dropped(two):
    inbox = two.teams[1].rows
    two.mails[0].post(1, TAG, [np.ones((1, 1), np.float32)])
    two.mails[0].end()
    inbox.begin_round(two.teams[1].generation + 1)
    two.mails[1].begin(Position(0, 0))
    assert two.mails[1].take(0, TAG) is None


def test_who_waits_for_a_lost_worker_meets_again(two):
    two.mails[0].wait()
    two.meeting.rounds.lose(1)
    with pytest.raises(RegroupError):
        two.mails[0].wait()


@pytest.mark.parametrize(("pieces", "messages"), [(1000, 1), (64, 4)])
def test_small_arrays_travel_together(two, monkeypatch, pieces, messages):
    """Those of 48, 0, 24 and 96 bytes; the last one is cut where 64 bytes are sent at a time."""
    monkeypatch.setattr(whole, "_PIECE", pieces)
    rows = [np.full((count, 3), count, np.float32) for count in (4, 0, 2, 8)]
    two.mails[0].post(1, TAG, rows)
    assert len(two.mails[0]._sent) == messages
    two.mails[0].end()
    found = taken(two.mails[1], 0, TAG)
    assert all(np.array_equal(*pair) for pair in zip(found, rows, strict=True))


ROWS = np.zeros((2, 2), np.float32)


@pytest.mark.parametrize("arrays", [(), (np.zeros(2, np.float32),), (np.zeros((2, 2), np.int64),), (ROWS, ROWS)])
def test_what_is_no_array_of_rows_is_refused(two, arrays):
    body = {"generation": 1, "epoch": 0, "batch": 0, **TAG._asdict(), "pieces": 1, "places": [[0, 0]]}
    channel = two.members[1].endpoint.channel("worker-0", "rows", 0)
    with refused("malformed-message worker-1"):
        channel.call(Message("rows", body, arrays), 5.0)


def test_lists_are_exchanged_and_given_again_to_who_was_started_again(two):
    exchanges = [WireListExchange(member, lambda: None) for member in two.members]
    given = [[[np.array([10 * rank + other])] for other in range(2)] for rank in range(2)]
    found = at_once(*(lambda rank=rank: exchanges[rank].exchange("a", given[rank]) for rank in range(2)))
    for rank in range(2):
        assert [each[0].tolist() for each in found[rank]] == [[rank], [10 + rank]]
    again = WireListExchange(two.members[0], lambda: None)
    assert again.exchange("a", given[0])[1][0].tolist() == [10]


def test_who_waits_for_lists_in_a_round_that_is_over_meets_again(two):
    def check():
        raise RegroupError

    WireListExchange(two.members[1], check)
    with pytest.raises(RegroupError):
        WireListExchange(two.members[0], check).exchange("b", [[], []])
