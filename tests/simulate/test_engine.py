"""The engine against a simulator in plain Python, against closed forms, and against what must always hold."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_simulator import simulate_plainly
from small_jobs import many_flows, random_case

from penstock.simulate import POLICIES, PeakToMean, critical_path, draw_amounts, lower_bound, simulate
from penstock.simulate.rates import FLOW_POLICIES
from penstock.simulate.simulation import Simulator
from penstock.simulate.state import PRIORITY, RatePolicy, terms_of

SEEDS = st.integers(0, 10**6)


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_to_a_plain_simulator(policy):
    # In the last one a flow in service is put back by another of its path that has to wait as well.
    for seed in (*range(40), 1478):
        load, network, placement, amounts = random_case(seed)
        timeline = simulate(load, network, placement, amounts, policy)
        plain = policy if policy in FLOW_POLICIES else _ranks(Simulator(load, network, amounts, policy), placement)
        starts, ends = simulate_plainly(load, network, placement, amounts, plain)
        for (n, item), when in ends.items():
            assert timeline.ends[n, item] == pytest.approx(when, rel=1e-6, abs=1e-9), (seed, n, load.item_name(item))
            assert timeline.starts[n, item] == pytest.approx(starts[n, item], rel=1e-6, abs=1e-9)


def _ranks(simulator, placement):
    """What a policy of coflows says of every flow."""
    return np.broadcast_to(simulator.policy.terms(simulator.case(placement)).rank, simulator.amounts.sizes.shape)


def test_more_ranks_at_a_time_than_are_remembered():
    policy = RatePolicy(
        "by-number", PRIORITY, lambda case: terms_of(case, rank=np.arange(case.shape.flows, dtype=np.int64)[None] // 2)
    )
    for seed in range(3):
        load, network, placement = many_flows(seed)
        amounts = draw_amounts(load, 2, seed, {"data": PeakToMean(1.7)})
        timeline = simulate(load, network, placement, amounts, policy)
        _, ends = simulate_plainly(load, network, placement, amounts, "by-number")
        for (n, item), when in ends.items():
            assert timeline.ends[n, item] == pytest.approx(when, rel=1e-6, abs=1e-9), (seed, n, load.item_name(item))


@given(SEEDS, st.sampled_from(list(POLICIES)))
def test_dependencies_are_kept_and_nothing_idles(seed, policy):
    load, network, placement, amounts = random_case(seed)
    timeline = simulate(load, network, placement, amounts, policy)
    assert np.isfinite(timeline.ends).all()
    iterations = len(timeline.ends)
    ready = np.zeros_like(timeline.starts)
    for before, after, lag in zip(load.before, load.after, load.lags, strict=True):
        for n in range(lag, iterations):
            ready[n, after] = max(ready[n, after], timeline.ends[n - lag, before])
    np.testing.assert_allclose(timeline.starts, ready, rtol=1e-9, atol=1e-12)
    tasks = timeline.ends[:, : load.tasks] - timeline.starts[:, : load.tasks]
    np.testing.assert_allclose(tasks, amounts.seconds, rtol=1e-9, atol=1e-9)


@given(SEEDS, st.sampled_from(list(POLICIES)))
def test_bytes_arrive_and_capacities_are_never_exceeded(seed, policy):
    load, network, placement, amounts = random_case(seed)
    simulator = Simulator(load, network, amounts, policy)
    timeline = simulator.timeline(placement, segments=True)
    flow_path = timeline.case.routes.flow_path
    pieces = []
    for n in range(timeline.iterations):
        for flow in np.flatnonzero(flow_path >= 0):
            found = timeline.segments(int(flow), n)
            sent = sum((each.end - each.start) * each.rate for each in found)
            assert sent == pytest.approx(amounts.sizes[n, flow], rel=1e-6, abs=1e-9)
            pieces += [(flow, *each) for each in found]
    for moment in {(start + end) / 2 for _, start, end, _ in pieces}:
        rates = np.zeros(len(network.capacities))
        machines = load.settled(placement, len(network.machines))
        for flow, start, end, rate in pieces:
            if start <= moment < end:
                rates[network.path(machines[load.sources[flow]], machines[load.targets[flow]])] += rate
        assert (rates <= network.capacities * (1 + 1e-6)).all()


@given(SEEDS, st.sampled_from(list(POLICIES)))
def test_no_schedule_beats_the_lower_bound_and_the_critical_path_is_the_makespan(seed, policy):
    load, network, placement, amounts = random_case(seed)
    simulator = Simulator(load, network, amounts, policy)
    timeline = simulator.timeline(placement)
    assert timeline.makespan >= lower_bound(simulator.case(placement)) * (1 - 1e-9)
    assert simulator.makespan(placement) == timeline.makespan
    assert (timeline.link_use <= 1 + 1e-9).all()
    assert (timeline.machine_busy(placement) <= 1 + 1e-9).all()
    steps = critical_path(timeline)
    assert sum(step.end - step.start for step in steps) == pytest.approx(timeline.makespan, rel=1e-9, abs=1e-9)
    for step, following in pairwise(steps):
        assert step.end == pytest.approx(following.start, rel=1e-9)
        assert (step.waited > 0) == (step.waited_for != "")


def test_scratch_used_again_gives_the_same():
    load, network, placement, amounts = random_case(3)
    others = np.random.default_rng(0).integers(0, len(network.machines), (5, load.tasks))
    for policy in POLICIES:
        simulator = Simulator(load, network, amounts, policy)
        first = simulator.makespan(placement)
        for other in others:
            simulator.makespan(other)
        assert simulator.makespan(placement) == first


def test_a_faster_machine_shortens_its_tasks():
    load, network, placement, _ = random_case(11)
    amounts = draw_amounts(load, 2)
    placement[:] = 0
    slow = simulate(load, network, placement, amounts).makespan
    speeds = np.full(len(network.machines), 2.0)
    assert simulate(load, network, placement, amounts, speeds=speeds).makespan == pytest.approx(slow / 2)
