"""Coflows whose completion times can be worked out on paper."""

import numpy as np
import pytest

from penstock.simulate.traces import TRACE_POLICIES, simulate_trace
from penstock.simulate.traces.coflows import PortRates, coflows_from
from penstock.simulate.traces.simulation import bottlenecks
from refusals import refused

ALL = pytest.mark.parametrize("policy", TRACE_POLICIES)


@ALL
def test_one_coflow_takes_its_bottleneck(policy):
    coflows = coflows_from(3, [(2.0, {(0, 1): 4.0, (0, 2): 2.0, (1, 1): 1.0})], [7])
    outcome = simulate_trace(coflows, policy, 2.0)
    assert outcome.completions.tolist() == pytest.approx([5.0])
    assert outcome.bounds.tolist() == pytest.approx([3.0])
    assert (outcome.makespan_s, outcome.mean_cct_s, outcome.p95_cct_s) == pytest.approx((3, 3, 3))
    assert outcome.mean_slowdown == pytest.approx(1)
    assert outcome.ingress_use.tolist() == pytest.approx([1, 1 / 6, 0])
    assert outcome.egress_use.tolist() == pytest.approx([0, 5 / 6, 1 / 3])
    assert outcome.names.tolist() == [7]


@pytest.mark.parametrize(
    ("policy", "ends"), [("fair", (6, 3)), ("fifo", (5, 6)), ("sebf", (6, 3)), ("sincronia", (6, 3))]
)
def test_a_short_coflow_behind_a_long_one(policy, ends):
    # 5 bytes from 0 on and 1 byte from 1 on share a port; the other flow of the late coflow takes until 3.
    coflows = coflows_from(2, [(0.0, {(0, 0): 5.0}), (1.0, {(0, 0): 1.0, (1, 1): 2.0})])
    assert simulate_trace(coflows, policy, 1.0).completions.tolist() == pytest.approx(ends)


@pytest.mark.parametrize(
    ("policy", "ends"), [("fair", (3, 2)), ("fifo", (2, 3)), ("sebf", (3, 1)), ("sincronia", (3, 1))]
)
def test_two_coflows_on_one_port(policy, ends):
    coflows = coflows_from(1, [(0.0, {(0, 0): 4.0}), (0.0, {(0, 0): 2.0})])
    assert simulate_trace(coflows, policy, 2.0).completions.tolist() == pytest.approx(ends)


def test_fair_counts_flows_and_forgets_coflows():
    # Three flows into port 0, two of them of one coflow: each gets a third.
    coflows = coflows_from(3, [(0.0, {(0, 0): 2.0, (1, 0): 2.0}), (0.0, {(2, 0): 2.0})])
    assert simulate_trace(coflows, "fair", 1.0).completions.tolist() == pytest.approx([6, 6])
    assert simulate_trace(coflows, "fifo", 1.0).completions.tolist() == pytest.approx([4, 6])


def test_madd_lets_a_coflow_end_together_and_leaves_the_rest():
    # Alone, the second flow could end at 1; slowed to end at 4 with the first, it leaves 3/4 of its ports.
    coflows = coflows_from(3, [(0.0, {(0, 0): 4.0, (1, 1): 1.0}), (0.0, {(1, 2): 6.0, (2, 1): 6.0})])
    outcome = simulate_trace(coflows, "sebf", 1.0, changes=True)
    assert outcome.completions.tolist() == pytest.approx([4, 7])
    begin = outcome.changes[outcome.changes["when"] == 0]
    assert dict(zip(begin["flow"].tolist(), begin["rate"].tolist(), strict=True)) == pytest.approx(
        {0: 1.0, 1: 0.25, 2: 0.75, 3: 0.75}
    )


def test_smallest_bottleneck_before_narrowest_and_before_smallest():
    # The wide coflow has more flows and more bytes, yet its bottleneck is shorter.
    wide = {(port, port): 2.0 for port in range(3)}
    coflows = coflows_from(3, [(0.0, {(0, 0): 3.0}), (0.0, wide)])
    for policy in ("sebf", "sincronia"):
        assert simulate_trace(coflows, policy, 1.0).completions.tolist() == pytest.approx([5, 2])


def test_backfilling_sends_what_no_coflow_in_front_wants():
    # The second coflow waits for port 0, but its other flow finds free ports at once.
    coflows = coflows_from(3, [(0.0, {(0, 0): 2.0}), (0.0, {(0, 1): 1.0, (2, 2): 3.0})])
    assert simulate_trace(coflows, "sebf", 1.0).completions.tolist() == pytest.approx([2, 3])


def test_what_a_backfilled_flow_leaves_goes_to_the_next():
    # Behind the first coflow, 1->1 is backfilled and ends at 1; then 1->2 of the third may send, long before any
    # coflow is complete.
    coflows = coflows_from(
        4, [(0.0, {(0, 0): 10.0}), (0.0, {(0, 3): 11.0, (1, 1): 1.0}), (0.0, {(1, 2): 5.0, (0, 0): 25.0})]
    )
    outcome = simulate_trace(coflows, "sebf", 1.0, changes=True)
    flow = np.flatnonzero((coflows.sources == 1) & (coflows.targets == 2))[0]
    mine = outcome.changes[outcome.changes["flow"] == flow]
    assert mine[mine["rate"] > 0]["when"][0] == pytest.approx(1)
    assert mine[-1]["when"] == pytest.approx(6)


def test_the_order_of_two_small_coflows_around_a_long_one():
    # On port 0 everybody meets; by bottleneck: 1, then 2, then 3 seconds.
    coflows = coflows_from(1, [(0.0, {(0, 0): 3.0}), (0.0, {(0, 0): 1.0}), (0.0, {(0, 0): 2.0})])
    for policy in ("sebf", "sincronia"):
        assert simulate_trace(coflows, policy, 1.0).completions.tolist() == pytest.approx([6, 1, 3])


def test_where_the_bottleneck_misleads_and_bssi_does_not():
    # Coflow 0 needs 2 s of every port, three others 3 s of one port each. By bottleneck coflow 0 is first and all wait.
    # BSSI: port 0 puts coflow 1 last and leaves coflow 0 a weight of 1/3, so that port 1 puts it before last.
    apart = [(0.0, {(port, port): 3.0}) for port in range(3)]
    coflows = coflows_from(3, [(0.0, {(port, port): 2.0 for port in range(3)}), *apart])
    assert simulate_trace(coflows, "sebf", 1.0).completions.tolist() == pytest.approx([2, 5, 5, 5])
    assert simulate_trace(coflows, "sincronia", 1.0).completions.tolist() == pytest.approx([5, 5, 3, 3])


def test_a_flow_of_an_earlier_coflow_takes_ports_back():
    # Coflow 0 holds 0->0 and wants 0->1 next; when 0->0 ends, 1->1 of the longer coflow must give port 1 back.
    coflows = coflows_from(2, [(0.0, {(0, 0): 1.0, (0, 1): 1.0}), (0.0, {(1, 1): 5.0})])
    outcome = simulate_trace(coflows, "sincronia", 1.0, changes=True)
    assert outcome.completions.tolist() == pytest.approx([2, 6])
    late = outcome.changes[outcome.changes["flow"] == 2]
    assert list(zip(late["when"].tolist(), late["rate"].tolist(), strict=True)) == [(0, 1), (1, 0), (2, 1), (6, 0)]


@ALL
def test_unlike_ports(policy):
    rates = PortRates(np.array([4.0, 1.0]), np.array([2.0, 8.0]))
    coflows = coflows_from(2, [(0.0, {(0, 0): 6.0, (1, 1): 2.0})])
    assert bottlenecks(coflows, rates).tolist() == pytest.approx([3])
    assert simulate_trace(coflows, policy, rates).completions.tolist() == pytest.approx([3])


@ALL
def test_coflows_without_bytes_are_complete_when_they_arrive(policy):
    coflows = coflows_from(2, [(3.0, {(0, 1): 0.0}), (1.0, {}), (0.0, {(0, 0): 9.0})])
    outcome = simulate_trace(coflows, policy, 3.0)
    assert outcome.completions.tolist() == pytest.approx([3, 1, 3])
    empty = simulate_trace(coflows_from(2, [(3.0, {})]), policy, 3.0)
    assert empty.completions.tolist() == [3.0] and empty.makespan_s == 0 and empty.mean_slowdown == 1


def test_what_cannot_be_simulated():
    coflows = coflows_from(2, [(0.0, {(0, 1): 1.0})])
    with refused("unknown-name sbef sebf"):
        simulate_trace(coflows, "sbef", 1.0)
    for rate in (0.0, -1.0, np.nan, np.inf):
        with refused("value-out-of-range"):
            simulate_trace(coflows, "fair", rate)
    with refused("shape-mismatch 3 2"):
        simulate_trace(coflows, "fair", PortRates(np.ones(3), np.ones(2)))


@pytest.mark.parametrize(
    ("ports", "coflows", "sentence"),
    [
        (0, [(0.0, {})], "value-out-of-range 0"),
        (2, [], "shape-mismatch 0"),
        (2, [(-1.0, {})], "value-out-of-range 0 -1"),
        (2, [(0.0, {(0, 2): 1.0})], "id-out-of-range 2 0 1"),
        (2, [(0.0, {(-1, 0): 1.0})], "id-out-of-range -1"),
        (2, [(0.0, {(0, 0): np.nan})], "value-out-of-range"),
    ],
)
def test_coflows_that_cannot_be(ports, coflows, sentence):
    with refused(sentence):
        coflows_from(ports, coflows)
    with refused("duplicate 5"):
        coflows_from(2, [(0.0, {}), (0.0, {})], [5, 5])
