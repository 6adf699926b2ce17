"""What belongs together is known to belong together wherever it goes, and is counted once."""

import numpy as np
import pytest
from meetings import Meeting, echo, until

from penstock.errors import PenstockError
from penstock.wire.coflows import (
    _REMEMBERED,
    EMBEDDINGS,
    GRADIENTS,
    NO_COFLOW,
    Coflow,
    Coflows,
    batch_order,
    coflow_figures,
    current_coflow,
    read_tallies,
    within_batch,
    within_kind,
)
from penstock.wire.message import Message
from refusals import refused


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_thread_works_for_one_coflow_at_a_time() -> None:
    assert current_coflow() == NO_COFLOW
    with within_batch(batch_order(1, 2)):
        assert current_coflow() == Coflow("batch", "", (1 << 32) + 3)
        with within_kind(GRADIENTS):
            assert current_coflow() == Coflow("gradients", "", (1 << 32) + 3)
        assert current_coflow().kind == "batch"
        with within_batch(0):
            assert current_coflow() == NO_COFLOW
    assert current_coflow() == NO_COFLOW
    with within_kind(GRADIENTS):
        assert current_coflow() == NO_COFLOW, "without a batch all sums of a run would be one"


def test_from_the_first_request_to_the_last_answer() -> None:
    clock = Clock()
    coflows = Coflows("a", clock)
    batch = Coflow("batch", "a", 1)
    for at, calls in ((1.0, 2), (5.0, 1)):
        clock.now = at
        for _ in range(calls):
            coflows.asked(batch, 10, "lists")
        for _ in range(calls):
            clock.now += 1.0
            coflows.answered(batch, 100, "features")
            coflows.ended(batch)
    (figures,) = coflow_figures([coflows.tallies()])
    assert figures.pop("flows") == {"features": 300, "lists": 30}
    assert figures == {
        "kind": "batch",
        "count": 1,
        "bytes": 330,
        "mean_cct_s": 5.0,
        "p95_cct_s": pytest.approx(5.0, rel=0.05),
    }
    coflows.asked(batch, 10, "lists")
    assert coflow_figures([coflows.tallies()])[0]["count"] == 0, "it goes on"


def test_calls_that_fail_are_no_time() -> None:
    coflows = Coflows("a", Clock())
    coflows.asked(Coflow("batch", "a", 1), 10, "lists")
    coflows.ended(Coflow("batch", "a", 1))
    assert coflow_figures([coflows.tallies()]) == [
        {"kind": "batch", "count": 0, "bytes": 10, "mean_cct_s": 0.0, "p95_cct_s": 0.0, "flows": {"lists": 10}}
    ]


def test_what_is_remembered_is_bounded() -> None:
    clock = Clock()
    coflows = Coflows("a", clock)
    for turn in range(3 * _REMEMBERED):
        coflow = Coflow("batch", "a", turn + 1)
        coflows.asked(coflow, 1, "lists")
        clock.now += 2.0 if turn % 10 == 0 else 1.0
        coflows.answered(coflow, 1, "lists")
        coflows.ended(coflow)
    assert len(coflows._under_way) <= _REMEMBERED
    for number in range(100):
        coflows.asked(Coflow(f"kind {number}", "b", 1), 1, "lists")
    assert len(coflows.tallies()) <= 17
    for number in range(100):
        coflows.asked(Coflow("batch", "b", 1), 1, f"flow {number}")
    flows = coflows.tallies()["batch"]["flows"]
    assert len(flows) <= 17 and sum(flows.values()) == coflows.tallies()["batch"]["bytes"]
    (figures,) = (each for each in coflow_figures([coflows.tallies()]) if each["kind"] == "batch")
    assert figures["count"] == 3 * _REMEMBERED
    assert figures["mean_cct_s"] == pytest.approx(1.1, abs=0.01)
    assert figures["p95_cct_s"] == pytest.approx(2.0, rel=0.05)


def test_figures_of_several_processes_are_those_of_all() -> None:
    told = []
    for name, seconds in (("a", 1.0), ("b", 3.0)):
        clock = Clock()
        coflows = Coflows(name, clock)
        coflows.asked(Coflow("gradients", name, 1), 10, "lists")
        clock.now = seconds
        coflows.answered(Coflow("gradients", name, 1), 5, "lists")
        coflows.ended(Coflow("gradients", name, 1))
        told.append(coflows.tallies())
    (figures,) = coflow_figures(told)
    assert (figures["count"], figures["bytes"], figures["mean_cct_s"]) == (2, 30, 2.0)
    assert figures["p95_cct_s"] == pytest.approx(3.0, rel=0.05)


def test_a_coflow_goes_with_a_call_and_with_what_its_handler_asks(meeting: Meeting) -> None:
    """The sampler's draws are its worker's, and counted there as bytes, here as coflows."""
    a, b, c = meeting("a", "b", "c")
    seen = []

    def note(message: Message, sender: str) -> Message:
        seen.append(current_coflow())
        return Message("noted")

    def pass_on(message: Message, sender: str) -> Message:
        seen.append(current_coflow())
        return b.channel("c", "lists", 1).call(Message("note"))

    c.serve("note", note)
    b.serve("pass on", pass_on)
    with within_batch(7):
        a.channel("b").call(Message("pass on"))
        with within_kind(EMBEDDINGS):
            a.channel("b").call(Message("pass on"))
    batch, push = Coflow("batch", "a", 7), Coflow("embeddings", "a", 7)
    assert seen == [batch, batch, push, push]
    until(lambda: all(each["count"] == 1 for each in a.coflows().values()))
    assert set(a.coflows()) == set(b.coflows()) == {"batch", "embeddings"}
    assert all(each["count"] == 0 and each["messages"] == 2 for each in b.coflows().values())
    assert c.coflows() == {}


def test_answers_bear_the_name_and_urgency_of_what_they_answer(meeting: Meeting) -> None:
    a, b = meeting("a", "b")
    b.serve("echo", echo)
    heard = []
    channel = a.channel("b", "rows", 2)
    receive = channel.receive
    channel.receive = lambda received, size: (heard.append(received), receive(received, size))  # type: ignore[method-assign]
    with within_batch(9):
        channel.call(Message("echo", arrays=(np.zeros(3),)))
    assert [(each.coflow, each.priority, each.number) for each in heard] == [(Coflow("batch", "a", 9), 2, 0)]


def test_what_is_told_is_read_as_it_was_meant() -> None:
    coflows = Coflows("a", Clock())
    coflows.asked(Coflow("batch", "a", 1), 10, "lists")
    coflows.answered(Coflow("batch", "a", 1), 10, "lists")
    coflows.ended(Coflow("batch", "a", 1))
    assert read_tallies(coflows.tallies(), "a") == coflows.tallies()
    assert coflow_figures([read_tallies(coflows.tallies(), "a")])[0]["count"] == 1


PLAIN = {"count": 1, "bytes": 1, "messages": 1, "seconds": 1.0, "times": {"0": 1}, "flows": {"lists": 1}}


@pytest.mark.parametrize(
    "told",
    [
        [],
        {"batch": 1},
        {"batch": {}},
        {"batch": {**PLAIN, "count": -1}},
        {"batch": {**PLAIN, "count": "1"}},
        {"batch": {**PLAIN, "seconds": float("nan")}},
        {"batch": {**PLAIN, "times": {"9999": 1}}},
        {"batch": {**PLAIN, "times": {"soon": 1}}},
        {"batch": {**PLAIN, "times": {"1": 0.5}}},
        {"batch": {**PLAIN, "flows": {"lists": -1}}},
        {"batch": {**PLAIN, "flows": {str(number): 1 for number in range(18)}}},
        {"b" * 129: PLAIN},
        {str(number): PLAIN for number in range(18)},
    ],
)
def test_what_cannot_be_told_is_refused_at_once(told: object) -> None:
    """And not when the run is over and its result is made."""
    with refused("malformed-message worker-0"):
        read_tallies(told, "worker-0")


def test_what_is_told_never_fails_when_it_is_added_up() -> None:
    extreme = {**PLAIN, "times": {"999": 1, "-999": 1}, "seconds": 1e308, "count": 2}
    (figures,) = coflow_figures([read_tallies({"batch": extreme}, "a")] * 2)
    assert figures["count"] == 4


def test_a_call_that_ends_at_once_is_not_under_way_for_ever(meeting: Meeting) -> None:
    a, _ = meeting("a", "b")
    channel = a.channel("b")
    with within_batch(3):
        call = channel.start(Message("echo"))
    channel.close()
    # Closed, or told by the other side that nobody serves it: whichever came first.
    with pytest.raises(PenstockError):
        call.result()
    assert [under_way.calls for under_way in a._coflows._under_way.values()] == [0]
    with within_batch(4), refused("closed"):
        channel.start(Message("echo"))
    assert len(a._coflows._under_way) == 1
