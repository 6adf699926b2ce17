"""What workers ask of the controller: answers, and who is refused."""

import numpy as np
import pytest

from penstock.cluster.rendezvous import Rendezvous, RendezvousValues
from penstock.wire.message import Message
from refusals import refused


def asked(meeting, kind, sender, *arrays, **body):
    """An answer's kind and body."""
    return meeting.handlers()[kind](Message(kind, body, arrays), sender)


def both_joined():
    """A meeting of two workers in their first round."""
    meeting = Rendezvous(2)
    assert asked(meeting, "join", "worker-0", step=3, after=0, incarnation=0).kind == "wait"
    answer = asked(meeting, "join", "worker-1", step=5, after=0, incarnation=0)
    assert answer.kind == "round" and answer.body == {"generation": 1, "source": 1, "step": 5, "last": False}
    return meeting


def test_barrier_waits_opens_and_ends_with_the_round():
    meeting = both_joined()
    assert asked(meeting, "barrier", "worker-0", generation=1, name="x").kind == "wait"
    assert asked(meeting, "barrier", "worker-1", generation=1, name="x").kind == "go"
    assert asked(meeting, "barrier", "worker-0", generation=1, name="x").kind == "go"
    assert meeting.rounds.lose(1) == 1
    assert asked(meeting, "barrier", "worker-0", generation=1, name="x").kind == "over"


def test_what_all_need_is_lost():
    """Nobody is gone, and all meet again."""
    meeting = both_joined()
    assert meeting.rounds.lose(None) == 1
    assert asked(meeting, "barrier", "worker-0", generation=1, name="x").kind == "over"
    assert asked(meeting, "join", "worker-0", step=5, after=1, incarnation=0).kind == "wait"
    assert asked(meeting, "join", "worker-1", step=5, after=1, incarnation=0).body["generation"] == 2


def test_those_who_are_left_meet_a_last_time():
    meeting = both_joined()
    assert meeting.rounds.close({0}) == 1
    assert asked(meeting, "barrier", "worker-0", generation=1, name="x").kind == "over"
    answer = asked(meeting, "join", "worker-0", step=5, after=1, incarnation=0)
    assert answer.body == {"generation": 2, "source": 0, "step": 5, "last": True}


def test_findings_are_of_all_and_the_first_of_each():
    """Before any round; whoever comes back with another one learns what was decided by its first."""
    meeting = Rendezvous(2)

    def agree(sender, **finding):
        return asked(meeting, "agree", sender, matter="m", **finding)

    assert agree("worker-0").kind == agree("worker-0", finding="no").kind == agree("worker-1").kind == "wait"
    assert agree("worker-0", finding="").kind == "wait"
    assert agree("worker-1", finding="").body == {"findings": ["no", ""]}
    meeting.rounds.lose(0)
    assert agree("worker-0", finding="").body == agree("worker-0").body == {"findings": ["no", ""]}
    assert asked(meeting, "agree", "worker-0", matter="another").kind == "wait"
    with refused("not-permitted store-m0"):
        agree("store-m0", finding="")


def test_board_is_that_of_the_round():
    meeting = both_joined()
    value = np.arange(4, dtype=np.uint8)
    assert asked(meeting, "read", "worker-0", generation=1, key="k").kind == "wait"
    asked(meeting, "write", "worker-1", value, generation=1, key="k")
    found = asked(meeting, "read", "worker-0", generation=1, key="k")
    assert found.kind == "found" and np.array_equal(found.arrays[0], value)
    meeting.rounds.lose(0)
    assert asked(meeting, "read", "worker-1", generation=1, key="k").kind == "over"


def test_board_forgets_older_rounds_and_copies():
    board, value = RendezvousValues(), np.array([7], np.uint8)
    board.write(1, "k", value)
    value[0] = 8
    assert board.read(1, "k").tolist() == [7]
    board.write(2, "other", value)
    assert board.read(1, "k") is None and board.read(2, "k") is None
    board.write(1, "k", value)
    assert board.read(2, "k") is None and board.read(1, "k") is None


@pytest.mark.parametrize("sender", ["store-a", "worker-", "worker-x", "controller"])
@pytest.mark.parametrize("kind", ["join", "barrier", "write", "read"])
def test_only_workers_meet(kind, sender):
    body = {"step": 0, "after": 0, "generation": 1, "incarnation": 0, "name": "x", "key": "k"}
    meeting = both_joined()
    with refused("not-permitted"):
        asked(meeting, kind, sender, np.zeros(1, np.uint8), **body)
