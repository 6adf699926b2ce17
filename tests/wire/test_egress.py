"""Who sends next, and how much is with ZeroMQ at a time: without a socket."""

from collections import defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.egress import POLICIES, Egress, Flow, Outgoing

WINDOW = 100


@dataclass(frozen=True)
class Waiting:
    """A head as a policy sees it."""

    arrival: int
    start: int
    priority: int
    turn: int


heads = st.lists(
    st.builds(Waiting, st.integers(0, 99), st.integers(0, 99), st.integers(-3, 3), st.integers(0, 2)),
    min_size=1,
    max_size=8,
    unique_by=lambda head: head.arrival,
)


@given(heads)
def test_policies_are_orders(waiting: list[Waiting]) -> None:
    first = {name: min(waiting, key=policy.rank) for name, policy in POLICIES.items()}
    assert first["fifo"].arrival == min(head.arrival for head in waiting)
    assert first["fair"].start == min(head.start for head in waiting)
    urgent = [head for head in waiting if head.priority == min(each.priority for each in waiting)]
    assert first["priority"] == min(urgent, key=POLICIES["fair"].rank)
    soonest = [head for head in waiting if head.turn == min(each.turn for each in waiting)]
    assert first["turns"] == min(soonest, key=POLICIES["priority"].rank)
    needed = [head for head in waiting if head.priority <= 0] or waiting
    earliest = [head for head in needed if head.turn == min(each.turn for each in needed)]
    assert first["coflow"] == min(earliest, key=POLICIES["priority"].rank)


def put(egress: Egress, flow: Flow, size: int) -> Outgoing:
    out = Outgoing(flow, None, [], size, lambda handed_over: None, lambda: None)
    egress.put(out)
    return out


def drained(egress: Egress) -> list[Outgoing]:
    """All that waits, in the order in which it is sent when every message leaves at once."""
    order = []
    while (out := egress.take(0.0)) is not None:
        egress.left(out, 0.0)
        order.append(out)
    return order


sizes = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50)), max_size=40)


@given(sizes)
def test_fifo_sends_in_the_order_of_arrival(given_sizes: list[tuple[int, int]]) -> None:
    egress = Egress(POLICIES["fifo"], WINDOW)
    outs = [put(egress, egress.flow(str(flow), flow), size) for flow, size in given_sizes]
    assert drained(egress) == outs


@given(sizes, st.sampled_from(sorted(POLICIES)))
def test_a_flow_keeps_its_order(given_sizes: list[tuple[int, int]], policy: str) -> None:
    egress = Egress(POLICIES[policy], WINDOW)
    outs = [put(egress, egress.flow(str(flow), flow), size) for flow, size in given_sizes]
    order = drained(egress)
    assert len(order) == len(outs)
    for name in "0123":
        assert [out for out in order if out.flow.name == name] == [out for out in outs if out.flow.name == name]


@given(st.lists(st.lists(st.integers(1, 50), min_size=20, max_size=20), min_size=2, max_size=4))
def test_fair_shares_are_within_a_message_of_each(flows: list[list[int]]) -> None:
    """While all have something to send, no two have had more different amounts than one message of each."""
    egress = Egress(POLICIES["fair"], WINDOW)
    for number, given_sizes in enumerate(flows):
        for size in given_sizes:
            put(egress, egress.flow(str(number), number), size)
    had: dict[str, int] = defaultdict(int)
    left = [len(given_sizes) for given_sizes in flows]
    while all(left):
        out = egress.take(0.0)
        assert out is not None
        egress.left(out, 0.0)
        had[out.flow.name] += out.size
        left[int(out.flow.name)] -= 1
        for one in range(len(flows)):
            for other in range(one):
                most = max(flows[one]) + max(flows[other])
                assert abs(had[str(one)] - had[str(other)]) <= most


@given(sizes)
def test_priority_is_never_overtaken(given_sizes: list[tuple[int, int]]) -> None:
    egress = Egress(POLICIES["priority"], WINDOW)
    for flow, size in given_sizes:
        put(egress, egress.flow(str(flow), flow), size)
    priorities = [out.flow.priority for out in drained(egress)]
    assert priorities == sorted(priorities)


def test_equals_share_within_a_priority() -> None:
    egress = Egress(POLICIES["priority"], WINDOW)
    for name, priority in (("a", 1), ("b", 1), ("urgent", 0)):
        for _ in range(4):
            put(egress, egress.flow(name, priority), 10)
    assert [out.flow.name for out in drained(egress)] == ["urgent"] * 4 + ["a", "b"] * 4


def test_earlier_turns_go_first_whatever_came_before() -> None:
    egress = Egress(POLICIES["turns"], WINDOW)
    for name, turn in (("a", 3), ("b", 1), ("c", 2)):
        for _ in range(2):
            put(egress, egress.flow(name, 0), 10).turn = turn
    assert [out.turn for out in drained(egress)] == [1, 1, 2, 2, 3, 3]


coflow_sizes = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 50)), max_size=40)


@given(coflow_sizes)
def test_coflows_leave_in_strict_order_also_within_a_flow(messages: list[tuple[int, int, int]]) -> None:
    """What is urgent, then earlier batches; of one rank a flow keeps its order."""
    egress = Egress(POLICIES["coflow"], WINDOW)
    outs = []
    for priority, turn, size in messages:
        flow = egress.flow(str(priority), priority)
        outs.append(Outgoing(flow, None, [], size, lambda handed_over: None, lambda: None, turn))
        egress.put(outs[-1])
    order = drained(egress)
    assert sorted(map(id, order)) == sorted(map(id, outs))
    ranks = [(out.flow.priority > 0, out.turn, out.flow.priority, out.arrival) for out in order]
    assert ranks == sorted(ranks)


def test_gradients_and_earlier_batches_overtake_what_is_prefetched() -> None:
    egress = Egress(POLICIES["coflow"], WINDOW)
    names = [("features", 2, 5), ("features", 2, 4), ("lists", 1, 6), ("gradients", 0, 3), ("control", 0, 0)]
    for name, priority, turn in names:
        for _ in range(2):
            out = Outgoing(egress.flow(name, priority), None, [], 10, lambda handed_over: None, lambda: None, turn)
            egress.put(out)
    assert [(out.flow.name, out.turn) for out in drained(egress)][::2] == [
        ("control", 0),
        ("gradients", 3),
        ("features", 4),
        ("features", 5),
        ("lists", 6),
    ]


def test_flows_of_one_coflow_share() -> None:
    egress = Egress(POLICIES["coflow"], WINDOW)
    for name in ("a", "b"):
        for _ in range(4):
            put(egress, egress.flow(name, 2), 10).turn = 1
    assert [out.flow.name for out in drained(egress)] == ["a", "b"] * 4


@pytest.mark.parametrize("policy", ["fair", "priority"])
def test_silence_is_no_credit(policy: str) -> None:
    """A flow that comes late shares from then on; it does not catch up with what it never asked for."""
    egress = Egress(POLICIES[policy], WINDOW)
    for _ in range(20):
        put(egress, egress.flow("early", 0), 10)
    for _ in range(10):
        out = egress.take(0.0)
        assert out is not None
        egress.left(out, 0.0)
    for _ in range(10):
        put(egress, egress.flow("late", 0), 10)
    names = [out.flow.name for out in drained(egress)]
    assert all(abs(names[:n].count("early") - names[:n].count("late")) <= 2 for n in range(1, 21))


def test_no_more_than_the_window_is_with_zeromq() -> None:
    egress, flows = Egress(POLICIES["fair"], WINDOW), "abc"
    for _ in range(5):
        for name in flows:
            put(egress, egress.flow(name, 0), 30)
    first = [egress.take(0.0) for _ in range(3)]
    assert None not in first
    assert egress.take(0.0) is None
    assert egress.in_flight() == 90
    assert first[0] is not None
    egress.left(first[0], 0.0)
    assert egress.take(0.0) is not None
    assert egress.take(0.0) is None


def test_a_message_beyond_the_window_goes_alone() -> None:
    egress = Egress(POLICIES["fifo"], WINDOW)
    large, small = put(egress, egress.flow("a", 0), 1000), put(egress, egress.flow("b", 0), 1)
    assert egress.take(0.0) is large
    assert egress.take(0.0) is None
    egress.left(large, 0.0)
    assert egress.take(0.0) is small


def test_a_flow_that_does_not_move_holds_up_nobody() -> None:
    egress = Egress(POLICIES["fair"], WINDOW)
    for _ in range(2):
        put(egress, egress.flow("stuck", 0), 100)
        put(egress, egress.flow("other", 0), 100)
    stuck = egress.take(0.0)
    assert stuck is not None
    assert stuck.flow.name == "stuck"
    assert egress.take(0.4) is None
    for now in (1.0, 1.1):
        out = egress.take(now)
        assert out is not None
        assert out.flow.name == "other"
        egress.left(out, now)
    assert egress.take(1.2) is None, "what is stuck gets no more"
    egress.left(stuck, 1.3)
    assert egress.take(1.3) is not None


def test_without_a_connection_others_go_on() -> None:
    egress = Egress(POLICIES["fifo"], WINDOW)
    absent, there = put(egress, egress.flow("absent", 0), 10), put(egress, egress.flow("there", 0), 10)
    assert egress.take(0.0) is absent
    egress.put_back(absent)
    assert egress.in_flight() == 0
    assert egress.take(0.0) is there
    assert egress.take(0.0) is None
    egress.unblock(absent.flow)
    assert egress.take(0.0) is absent


def test_withdrawn_messages_are_not_sent() -> None:
    egress = Egress(POLICIES["fair"], WINDOW)
    outs = [put(egress, egress.flow("a", 0), 10) for _ in range(3)]
    outs[1].cancelled = True
    assert egress.withdraw(outs[0].flow) == [outs[1]]
    assert drained(egress) == [outs[0], outs[2]]


def test_counters_count_what_was_handed_over() -> None:
    egress = Egress(POLICIES["fair"], WINDOW)
    flow = egress.flow("a>b", 2)
    for size in (10, 20):
        put(egress, flow, size)
    out = egress.take(0.0)
    assert out is not None
    egress.handed_over(out)
    egress.received(flow, 7)
    count = flow.count()
    assert (count.name, count.priority) == ("a>b", 2)
    assert (count.sent_bytes, count.sent_messages, count.received_bytes, count.received_messages) == (10, 1, 7, 1)
    assert egress.flow("a>b", 2) is flow
    assert egress.flow("a>b", 2, serving=True) is not flow
