"""What every policy keeps on random coflows, and how policies compare."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from switch_cases import rates_over_time, side_rates, switch_cases
from trace_workloads import workload_of

from penstock.simulate import simulate
from penstock.simulate.traces import TRACE_POLICIES, simulate_trace
from penstock.simulate.traces.coflows import TraceCoflows, coflows_from, join_flows, line_bytes, lines_of, rates_of
from penstock.simulate.traces.ordered import bssi
from penstock.simulate.traces.simulation import bottlenecks, makespan_bound, mean_cct_bound
from penstock.simulate.traces.trace import made_trace

ALL = pytest.mark.parametrize("policy", TRACE_POLICIES)


@ALL
@given(case=switch_cases())
def test_bytes_are_conserved_and_ports_never_exceeded(policy, case):
    coflows, rate = case
    outcome = simulate_trace(coflows, policy, rate, changes=True)
    moments, rates = rates_over_time(coflows, outcome.changes)
    sides = side_rates(coflows, rates)
    capacities = rates_of(rate, coflows.ports)
    assert (rates >= 0).all() and (sides <= capacities * (1 + 1e-9)).all()
    sent = (rates[:-1] * np.diff(moments)[:, None]).sum(axis=0) if coflows.flows else np.zeros(0)
    assert sent == pytest.approx(coflows.sizes, rel=1e-9)
    assert (outcome.ccts >= bottlenecks(coflows, rate) * (1 - 1e-9)).all()
    _check_times(coflows, outcome.completions, moments, rates)
    assert outcome.makespan_s >= outcome.makespan_bound_s * (1 - 1e-9)
    if policy == "coflowsim-fair":
        return
    # Work conserving: no flow that lives waits between two sides with something left.
    free = sides < capacities * (1 - 1e-6)
    for flow in range(coflows.flows):
        owner = np.searchsorted(coflows.first, flow, "right") - 1
        end = moments[np.flatnonzero(rates[:, flow])[-1] + 1]
        lives = (moments >= coflows.arrivals[owner]) & (moments < end)
        assert not (lives & free[:, coflows.sources[flow]] & free[:, coflows.ports + coflows.targets[flow]]).any()


def _check_times(coflows: TraceCoflows, completions, moments, rates):
    """Nothing moves before its coflow arrives, and a coflow is complete when its last flow stops."""
    for coflow in range(coflows.count):
        mine = rates[:, coflows.first[coflow] : coflows.first[coflow + 1]]
        if mine.shape[1]:
            busy = np.flatnonzero(mine.any(axis=1))
            assert moments[busy[0]] >= coflows.arrivals[coflow]
            assert moments[busy[-1] + 1] == pytest.approx(completions[coflow], rel=1e-9)
        else:
            assert completions[coflow] == coflows.arrivals[coflow]


@given(case=switch_cases())
def test_fair_is_the_engine_s_fair(case):
    coflows, rate = case
    load, network, placement = workload_of(coflows, rate)
    timeline = simulate(load, network, placement, 1, "fair")
    owners = np.repeat(np.arange(coflows.count), np.diff(coflows.first))
    ends = coflows.arrivals.copy()
    np.maximum.at(ends, owners, timeline.ends[0, load.tasks :])
    assert simulate_trace(coflows, "fair", rate).completions == pytest.approx(ends, rel=1e-9)


@given(case=switch_cases())
def test_coflowsim_s_fair_is_the_engine_s_equal_shares(case):
    coflows, rate = case
    load, network, placement = workload_of(coflows, rate)
    timeline = simulate(load, network, placement, 1, "oes")
    owners = np.repeat(np.arange(coflows.count), np.diff(coflows.first))
    ends = coflows.arrivals.copy()
    np.maximum.at(ends, owners, timeline.ends[0, load.tasks :])
    assert simulate_trace(coflows, "coflowsim-fair", rate).completions == pytest.approx(ends, rel=1e-9)


def test_coflowsim_s_variants_in_closed_form():
    # The first coflow holds port 0 in, so both others are passed over; their flows into port 1 share it as equals.
    coflows = coflows_from(
        3, [(0.0, {(0, 0): 8.0}), (0.0, {(0, 1): 4.0, (1, 1): 4.0}), (0.0, {(0, 2): 4.0, (1, 2): 4.0})]
    )
    fifo = simulate_trace(coflows, "coflowsim-fifo", 1.0, changes=True)
    first = {int(change["flow"]): float(change["rate"]) for change in fifo.changes if change["when"] == 0}
    assert first == pytest.approx({0: 1.0, 1: 0.0, 2: 0.5, 3: 0.0, 4: 0.5})
    assert fifo.completions.tolist() == pytest.approx([8.0, 12.0, 16.0])
    coflows = coflows_from(3, [(0.0, {(0, 0): 8.0}), (0.0, {(0, 1): 4.0, (1, 2): 4.0}), (0.0, {(1, 1): 4.0})])
    # Two flows enter at port 0, two at port 1, two leave at port 1: equal shares until the first end.
    fair = simulate_trace(coflows, "coflowsim-fair", 1.0)
    assert fair.completions.tolist() == pytest.approx([12.0, 8.0, 8.0])


def test_the_makespan_bound_counts_what_arrives_late():
    # 3 s of work at port 0 in arrive at 10 s, from two coflows: neither alone needs more than 2 s.
    coflows = coflows_from(
        3, [(0.0, {(1, 1): 1.0}), (10.0, {(0, 0): 2.0}), (10.0, {(0, 1): 1.0}), (12.0, {(2, 2): 0.5})]
    )
    assert makespan_bound(coflows, 1.0) == pytest.approx(13.0)
    assert (coflows.arrivals + bottlenecks(coflows, 1.0)).max() == pytest.approx(12.5)
    assert simulate_trace(coflows, "sebf", 1.0).makespan_s == pytest.approx(13.0)


def test_fair_is_the_engine_s_fair_on_a_made_trace():
    trace = made_trace(8, 25, 20.0, seed=3)
    load, network, placement = workload_of(trace, 1e8)
    ends = simulate(load, network, placement, 1, "fair").ends[0, load.tasks :]
    coflows = trace.coflows
    assert load.coflows.tolist() == np.repeat(np.arange(25), np.diff(coflows.first)).tolist()
    expected = np.maximum.reduceat(ends, coflows.first[:-1])
    assert simulate_trace(trace, "fair", 1e8).completions == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_orders_that_look_at_sizes_beat_arrival(seed, seconds):
    trace = made_trace(12, 40, seconds, seed)
    means = {policy: simulate_trace(trace, policy, 125e6).mean_cct_s for policy in TRACE_POLICIES}
    assert means["sebf"] <= means["fifo"] and means["sincronia"] <= means["fifo"]
    assert all(mean >= mean_cct_bound(trace.coflows, 125e6) * (1 - 1e-9) for mean in means.values())
    assert means["fair"] <= means["coflowsim-fair"]


@given(case=switch_cases())
def test_sincronia_is_within_four_times_a_bound(case):
    """Its order within twice the dual's value, every coflow within twice its place in the order (Sincronia's proof)."""
    coflows = replace(case[0], arrivals=np.zeros(case[0].count))
    lines, rates = lines_of(coflows), rates_of(2.0, coflows.ports)
    loads = line_bytes(lines, coflows.sizes)
    order, bound = bssi(np.arange(coflows.count), lines, loads, rates)
    ccts = simulate_trace(coflows, "sincronia", 2.0).ccts
    assert sorted(order.tolist()) == list(range(coflows.count))
    served, in_order = np.zeros(2 * coflows.ports), np.zeros(coflows.count)
    for coflow in order:
        mine = slice(lines.first[coflow], lines.first[coflow + 1])
        served[lines.sides[mine]] += loads[mine] / 2.0
        # A coflow without bytes waits for nobody; one with bytes is at most delayed to its worst side's end.
        in_order[coflow] = served[lines.sides[mine]].max(initial=0)
    assert in_order.sum() <= 2 * bound * (1 + 1e-9)
    assert (ccts <= 2 * in_order * (1 + 1e-9)).all()
    for policy in TRACE_POLICIES:
        assert simulate_trace(coflows, policy, 2.0).ccts.sum() >= bound * (1 - 1e-9)


@given(case=switch_cases())
def test_who_comes_later_never_delays_fifo(case):
    coflows, rate = case
    completions = simulate_trace(coflows, "fifo", rate).completions
    queue = np.argsort(coflows.arrivals, kind="stable")
    for many in range(1, coflows.count):
        kept = np.isin(np.repeat(np.arange(coflows.count), np.diff(coflows.first)), queue[:many])
        fewer = replace(
            coflows, sizes=coflows.sizes[kept], sources=coflows.sources[kept], targets=coflows.targets[kept]
        )
        fewer = replace(fewer, first=np.concatenate([[0], np.cumsum(kept)])[coflows.first])
        alone = simulate_trace(fewer, "fifo", rate).completions
        assert alone[queue[:many]] == pytest.approx(completions[queue[:many]], rel=1e-9)


@given(case=switch_cases())
def test_sincronia_is_its_plain_self(case):
    """All at once, on ports alike: the fixed order, and every flow in turn whose two ports are free."""
    coflows = replace(case[0], arrivals=np.zeros(case[0].count))
    lines = lines_of(coflows)
    order, _ = bssi(np.arange(coflows.count), lines, line_bytes(lines, coflows.sizes), rates_of(2.0, coflows.ports))
    now, left, completions = 0.0, coflows.sizes.copy(), np.zeros(coflows.count)
    while (left > 0).any():
        sending, taken = [], set()
        for flow in (flow for coflow in order for flow in range(*coflows.first[coflow : coflow + 2])):
            sides = {int(coflows.sources[flow]), coflows.ports + int(coflows.targets[flow])}
            if left[flow] > 0 and not sides & taken:
                taken |= sides
                sending.append(flow)
        step = left[sending].min()
        left[sending] -= step
        now += step / 2.0
        left[left < 1e-9] = 0.0
        for coflow in order:
            if completions[coflow] == 0 and left[slice(*coflows.first[coflow : coflow + 2])].sum() == 0:
                completions[coflow] = now if coflows.first[coflow] < coflows.first[coflow + 1] else 0.0
    assert simulate_trace(coflows, "sincronia", 2.0).completions == pytest.approx(completions, rel=1e-9)


@ALL
def test_a_schedule_does_not_depend_on_the_order_of_lines(policy):
    trace = made_trace(6, 20, 10.0, seed=1).coflows
    turned = np.arange(trace.count)[::-1]
    owners = np.repeat(np.arange(trace.count), np.diff(trace.first))
    other = join_flows(
        trace.ports, trace.names[turned], trace.arrivals[turned], turned[owners], trace.sources, trace.targets,
        trace.sizes,
    )  # fmt: skip
    assert np.unique(trace.arrivals).size == trace.count
    completions = simulate_trace(trace, policy, 1e8).completions
    assert simulate_trace(other, policy, 1e8).completions[turned].tolist() == completions.tolist()
