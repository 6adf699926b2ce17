"""Cases whose makespan can be worked out on paper."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from penstock.simulate import POLICIES, GnnJob, critical_path, gnn_workload, lower_bound, racks, simulate, star
from penstock.simulate.simulation import Simulator
from penstock.simulate.workload import WorkloadBuilder, merge

ALL = pytest.mark.parametrize("policy", POLICIES)


def senders(sizes, seconds=0.0):
    """Task a sends so many flows to tasks of their own."""
    building = WorkloadBuilder()
    source = building.task("a", "send", seconds)
    for k, size in enumerate(sizes):
        building.flow(source, building.task(f"b{k}", "receive", 0.0), size, "data")
    return building.build()


@ALL
def test_one_flow_takes_bytes_over_its_slowest_link(policy):
    timeline = simulate(senders([30.0]), star([5, 3], [4, 9]), np.array([0, 1]), 1, policy, segments=True)
    assert timeline.makespan == pytest.approx(10)
    assert timeline.segments(0, 0) == [pytest.approx((0, 10, 3))]
    assert timeline.link_use.tolist() == pytest.approx([3 / 4, 0, 0, 1])


@ALL
def test_flows_within_a_machine_are_free(policy):
    assert simulate(senders([30.0, 1e9], 2.0), star([5, 3], [4, 9]), np.zeros(3, int), 4, policy).makespan == 8


@pytest.mark.parametrize(
    ("policy", "ends"),
    [("oes", (4, 6)), ("fair", (4, 6)), ("fifo", (2, 6)), ("mrtf", (2, 6)), ("omcoflow", (4, 6))],
)
def test_two_flows_of_one_sender(policy, ends):
    # 4 and 8 bytes at 2 bytes/s; under omcoflow each is a coflow and wants the whole link.
    timeline = simulate(senders([4.0, 8.0]), star([9, 9, 9], [2, 9, 9]), np.array([0, 1, 2]), 1, policy)
    assert timeline.ends[0, 3:].tolist() == pytest.approx(ends)


def test_a_coflow_ends_together():
    building = WorkloadBuilder()
    target = building.task("sink", "sink", 0.0)
    for k, size in enumerate([1.0, 2.0, 5.0]):
        building.flow(building.task(f"s{k}", "source", 0.0), target, size, "data")
    timeline = simulate(building.build(), star([2, 9, 9, 9], [9] * 4), np.arange(4), 1, "omcoflow")
    assert timeline.ends[0, 4:].tolist() == pytest.approx([4, 4, 4])


def test_oes_leaves_unused_what_fair_gives_away():
    # Two flows leave m0 at 2 bytes/s; one of them shares m1's incoming 2 with three others.
    building = WorkloadBuilder()
    tasks = [building.task(f"t{k}", "work", 0.0) for k in range(4)]
    for k, (source, target) in enumerate([(0, 1), (0, 2), (3, 1), (3, 1), (3, 1)]):
        building.flow(tasks[source], tasks[target], 3.0, "data", name=f"f{k}")
    network = star([9, 2, 9, 9], [2, 9, 9, 9])
    rates = {}
    for policy in ("oes", "fair"):
        timeline = simulate(building.build(), network, np.arange(4), 1, policy, segments=True)
        rates[policy] = [timeline.segments(flow, 0)[0].rate for flow in range(2)]
    assert rates == {"oes": pytest.approx([0.5, 1.0]), "fair": pytest.approx([0.5, 1.5])}


@ALL
def test_chain_of_tasks_and_flows(policy):
    building = WorkloadBuilder()
    tasks = [building.task(f"t{k}", "work", 1.0) for k in range(4)]
    for source, target in pairwise(tasks):
        building.flow(source, target, 6.0, "data")
    load, network = building.build(), star([3] * 4, [3] * 4)
    # A pipeline: 4 x 1 s and 3 x 2 s, then one more every 2 s, for a flow follows itself.
    timeline = simulate(load, network, np.arange(4), 5, policy)
    assert timeline.makespan == pytest.approx(10 + 4 * 2)
    assert timeline.iteration_ends.tolist() == pytest.approx([10, 12, 14, 16, 18])
    assert lower_bound(timeline.case) == pytest.approx(timeline.makespan)
    assert {step.kind for step in critical_path(timeline)} == {"work", "data"}


@ALL
@pytest.mark.parametrize("size", [2, 3, 5])
def test_ring_all_reduce(policy, size):
    job = GnnJob(stores=1, workers=size, samplers_per_worker=1, servers=0, worker_seconds=1.0, model_bytes=12.0)
    load = gnn_workload(job)
    placement = np.zeros(load.tasks, int)
    placement[load.tasks_of("worker")] = np.arange(size)
    placement[load.tasks_of("sampler")] = np.arange(size)
    timeline = simulate(load, star([4] * size, [4] * size), placement, 3, policy)
    assert timeline.makespan == pytest.approx(3 * (1 + 2 * (size - 1) / size * 12 / 4))


def test_parameter_server_and_prefetch():
    job = GnnJob(1, 1, 1, sampler_seconds=1.0, worker_seconds=3.0, server_seconds=1.0, model_bytes=4.0, prefetch=2)
    load, network = gnn_workload(job), star([2, 2], [2, 2])
    placement = np.zeros(load.tasks, int)
    placement[load.tasks_of("server")] = 1
    timeline = simulate(load, network, placement, 4)
    # An iteration: worker 3, gradients 2, server 1, parameters 2; the last parameters are sent too.
    assert timeline.makespan == pytest.approx(1 + 4 * 8)
    sampler, worker = load.tasks_of("sampler")[0], load.tasks_of("worker")[0]
    assert timeline.starts[2:, sampler].tolist() == pytest.approx(timeline.ends[:-2, worker].tolist())


@ALL
def test_prefetch_bounds_what_is_pulled_ahead(policy):
    job = GnnJob(2, 2, 1, worker_seconds=4.0, pull_bytes=6.0, near_stores=[[1, 0], [0.5, 0.5]], prefetch=2)
    load = gnn_workload(job)
    placement = np.zeros(load.tasks, int)
    placement[load.tasks_of("store")] = 1
    timeline = simulate(load, star([6, 6], [6, 6]), placement, 6, policy)
    ends = timeline.ends[:-2, load.tasks_of("worker")]
    pulls = load.tasks + np.flatnonzero(np.array(load.flow_kinds) == "pull")
    assert timeline.starts[2:, pulls].T.tolist() == [pytest.approx(ends[:, worker].tolist()) for worker in (0, 1, 1)]
    # Two seconds until both have pulled for the first time; then pulls hide behind the workers.
    assert timeline.iteration_ends[-1] == pytest.approx(max(ends[0]) + 5 * 4)
    free = simulate(gnn_workload(replace(job, prefetch=None)), star([6, 6], [6, 6]), placement, 6, policy)
    assert free.ends[:, pulls].max() == pytest.approx(12)


def test_racks_share_their_uplink():
    # Two senders of rack 0 at 4 each, uplink 8 / 4 = 2.
    building = WorkloadBuilder()
    for k in range(2):
        building.flow(building.task(f"a{k}", "a", 0.0), building.task(f"b{k}", "b", 0.0), 6.0, "data")
    network = racks([0, 0, 1, 1], [4] * 4, [4] * 4, 4.0)
    timeline = simulate(building.build(), network, np.array([0, 2, 1, 3]), 1)
    assert timeline.makespan == pytest.approx(6)
    assert dict(zip(network.link_names, timeline.link_use, strict=True))["rack 0 up"] == pytest.approx(1)


def test_two_jobs_share_links_and_nothing_else():
    load = merge({"x": senders([6.0]), "y": senders([6.0])})
    assert load.task_names == ("x/a", "x/b0", "y/a", "y/b0") and load.job_names == ("x", "y")
    network = star([3] * 4, [3] * 4)
    assert simulate(load, network, np.array([0, 1, 2, 3]), 2).makespan == pytest.approx(4)
    assert simulate(load, network, np.array([0, 1, 0, 1]), 2).makespan == pytest.approx(8)


def test_the_earlier_iteration_goes_first():
    building = WorkloadBuilder()
    source, target = building.task("a", "a", 1.0), building.task("b", "b", 0.0)
    building.flow(source, target, 6.0, "data", follows_itself=False)
    load, network = building.build(), star([2, 2], [2, 2])
    fair = simulate(load, network, np.array([0, 1]), 2, "fair")
    first = simulate(load, network, np.array([0, 1]), 2, "iteration-first")
    # The second flow starts at 2, when the first has 4 of its 6 bytes left.
    assert fair.ends[:, 2].tolist() == pytest.approx([6, 7])
    assert first.ends[:, 2].tolist() == pytest.approx([4, 7])


def test_the_least_slack_goes_first():
    building = WorkloadBuilder()
    source = building.task("a", "a", 0.0)
    for name, seconds in (("short", 1.0), ("long", 9.0)):
        building.flow(source, building.task(name, "b", seconds), 4.0, "data")
    simulator = Simulator(building.build(), star([9, 9, 9], [2, 9, 9]), 1, "critical-path")
    assert simulator.makespan(np.array([0, 1, 2])) == pytest.approx(11)
