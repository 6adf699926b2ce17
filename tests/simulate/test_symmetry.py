"""One of each that behave alike stands for all of them: the same times as without, and as a plain simulator's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_simulator import simulate_plainly
from small_jobs import random_case

from penstock.simulate import POLICIES, GnnJob, PeakToMean, draw_amounts, gnn_workload, lower_bound, racks, star
from penstock.simulate.document import GnnDocument
from penstock.simulate.engine import Executor
from penstock.simulate.rates import FLOW_POLICIES
from penstock.simulate.simulation import Simulator
from penstock.simulate.state import PRIORITY, PROPORTIONAL
from penstock.simulate.symmetry import quotient_of

ALIKE = [name for name, policy in POLICIES.items() if policy.family in (PRIORITY, PROPORTIONAL)]
NEVER = 1 << 62


def symmetric_case(seed):
    """A GNN job on machines that are alike but for a few, placed round robin."""
    rng = np.random.default_rng(seed)
    machines = int(rng.integers(2, 7))
    load = gnn_workload(
        GnnJob(
            stores=machines * int(rng.integers(1, 3)),
            workers=machines * int(rng.integers(1, 3)),
            samplers_per_worker=int(rng.integers(1, 3)),
            servers=int(rng.integers(0, 3)),
            store_seconds=float(rng.choice([0.0, 0.3])),
            sampler_seconds=0.2,
            worker_seconds=1.0,
            server_seconds=0.1,
            pull_bytes=8.0,
            batch_bytes=4.0,
            model_bytes=2.0,
            prefetch=int(rng.integers(1, 3)) if rng.random() < 0.5 else None,
        )
    )
    rates = np.full(machines, 5.0)
    if rng.random() < 0.4:
        rates[0] = 2.0
    network = star(rates, rates)
    if rng.random() < 0.4:
        network = racks((np.arange(machines) % 2).tolist(), rates, rates, 3.0)
    spreads = {"worker": PeakToMean(1.5)} if rng.random() < 0.2 else {}
    placement = np.zeros(load.tasks, np.int32)
    for kind in sorted(set(load.task_kinds) - {"ring"}):
        tasks = load.tasks_of(kind)
        placement[tasks] = np.arange(len(tasks)) % machines
    return load, network, placement, draw_amounts(load, int(rng.integers(1, 4)), seed, spreads)


def runs(load, network, placement, amounts, policy):
    """The same case with one of each that behave alike, and with all of them."""
    simulator = Simulator(load, network, amounts, policy)
    case = simulator.case(placement)
    terms = simulator.policy.terms(case)
    few = Executor(many=0).run(simulator.policy.family, case, terms, times=True, segments=True)
    return few, Executor(many=NEVER).run(simulator.policy.family, case, terms, times=True, segments=True)


@given(st.integers(0, 10**6), st.sampled_from(ALIKE))
def test_times_are_those_of_all_items(seed, policy):
    for case in (symmetric_case(seed), random_case(seed)):
        few, every = runs(*case, policy)
        np.testing.assert_allclose(few.record.starts, every.record.starts, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(few.record.ends, every.record.ends, rtol=1e-9, atol=1e-9)
        assert few.makespan == pytest.approx(every.makespan, rel=1e-9)
        assert few.events == every.events
        placed = Simulator(*case[:2], case[3], policy).case(case[2])
        assert lower_bound(placed, many=0) == pytest.approx(lower_bound(placed, many=NEVER), rel=1e-9)


@pytest.mark.parametrize("policy", ALIKE)
def test_times_are_those_of_a_plain_simulator(policy):
    for seed in range(5):
        load, network, placement, amounts = symmetric_case(seed)
        few, _ = runs(load, network, placement, amounts, policy)
        simulator = Simulator(load, network, amounts, policy)
        ranks = np.broadcast_to(simulator.policy.terms(simulator.case(placement)).rank, amounts.sizes.shape)
        _, ends = simulate_plainly(load, network, placement, amounts, policy if policy in FLOW_POLICIES else ranks)
        for (n, item), when in ends.items():
            assert few.record.ends[n, item] == pytest.approx(when, rel=1e-6, abs=1e-9), (seed, n, load.item_name(item))


@pytest.mark.parametrize("servers", [0, 1, 8])
def test_equal_machines_are_few_items(servers):
    load = gnn_workload(
        GnnJob(stores=8, workers=8, samplers_per_worker=1, servers=servers, pull_bytes=8.0, model_bytes=2.0)
    )
    placement = np.zeros(load.tasks, np.int32)
    for kind in sorted(set(load.task_kinds) - {"ring"}):
        placement[load.tasks_of(kind)] = np.arange(len(load.tasks_of(kind)))
    simulator = Simulator(load, star(np.full(8, 5.0), np.full(8, 5.0)), 3, "fair")
    case = simulator.case(placement)
    quotient = quotient_of(case, simulator.policy.terms(case))
    assert quotient is not None
    # A ring has 14 steps, each a task and a flow; one server makes its machine differ from the others.
    assert quotient.case.shape.tasks + quotient.case.shape.flows <= {0: 7 + 28, 1: 22, 8: 11}[servers]


def test_items_that_differ_are_all_simulated():
    load, network, placement, _ = symmetric_case(3)
    amounts = draw_amounts(load, 2, 0, {kind: PeakToMean(1.5) for kind in {*load.task_kinds, *load.flow_kinds}})
    simulator = Simulator(load, network, amounts, "oes")
    case = simulator.case(placement)
    assert quotient_of(case, simulator.policy.terms(case)) is None


def test_a_large_timeline_has_the_segments_of_every_flow():
    load = gnn_workload(
        GnnJob(stores=40, workers=40, samplers_per_worker=1, servers=1, pull_bytes=80.0, model_bytes=2.0)
    )
    network = star(np.full(40, 5.0), np.full(40, 5.0))
    placement = np.zeros(load.tasks, np.int32)
    for kind in ("store", "worker", "sampler"):
        placement[load.tasks_of(kind)] = np.arange(40)
    simulator = Simulator(load, network, 15, "fair")
    timeline = simulator.timeline(placement, segments=True)
    assert timeline.makespan == simulator.makespan(placement)
    for flow in range(0, load.flows, 97):
        if timeline.case.routes.flow_path[flow] >= 0:
            sent = sum((each.end - each.start) * each.rate for each in timeline.segments(flow, 2))
            assert sent == pytest.approx(load.flow_bytes[flow], rel=1e-6)


def test_a_ring_of_a_thousand_workers_is_accepted():
    job = GnnDocument(stores=8, workers=1000, servers=0, model_bytes=1e6)
    assert job.workers == 1000
    with pytest.raises(ValueError, match="flows an iteration"):
        GnnDocument(stores=8, workers=4096, servers=0)


def test_a_large_ring_takes_its_steps():
    size = 200
    job = GnnJob(stores=1, workers=size, samplers_per_worker=1, servers=0, worker_seconds=0.5, model_bytes=4.0 * size)
    load = gnn_workload(job)
    placement = np.zeros(load.tasks, np.int32)
    placement[load.tasks_of("worker")] = np.arange(size)
    placement[load.tasks_of("sampler")] = np.arange(size)
    timeline = Simulator(load, star(np.full(size, 2.0), np.full(size, 2.0)), 2, "oes").timeline(placement)
    # 2(n - 1) steps of 4 bytes at 2 bytes a second, in each of two iterations.
    assert timeline.makespan == pytest.approx(2 * (0.5 + 2 * (size - 1) * 2.0))
    assert timeline.events == 2 * (size + size * 2 * (size - 1))
