"""What a plan says of replicas: where their bytes come from, and what one more would bring."""

import numpy as np
from pytest import approx

from penstock.hardware.cluster import ClusterDocument
from penstock.pipeline.options import PipelineOptions
from penstock.plan.placement import Budget
from penstock.plan.planner import PlanChoices, make_plan
from penstock.plan.workloads import PlannedRun
from penstock.plan.workloads.mini_batch import covered_reads, replica_shares
from penstock.progress import Progress
from plan_profiles import profile_of
from training_graphs import community_graph

FEATURES = (0.0, 1e6)


def cluster_of(*gbps, replicas=(), **more):
    """Machines with these links and a worker each."""
    machines = [{"name": f"m{number}", "nic_gbps": rate, "cores": 64} for number, rate in enumerate(gbps)]
    return ClusterDocument(machines=machines, replicas=list(replicas), **more)


def shares(cluster, parts=3):
    return [each.shares for each in replica_shares(cluster, profile_of(parts, parts, features=FEATURES), None)]


def test_rows_come_from_where_they_arrive_first():
    copy = {"part": 0, "machine": "m1"}
    (alike,) = shares(cluster_of(1, 1, 1, replicas=[copy]))
    # Worker 0 has the part itself, worker 1 the replica; the third divides what the links have left.
    assert alike[0] == 0 and alike[1] == approx(1) and 0 < alike[2] < 0.6
    (slow,) = shares(cluster_of(0.1, 1, 1, replicas=[copy]))
    # The slow link has a quarter: the other one carries the rows of a second part to two workers as well.
    assert slow[2] == approx(0.75)
    (fast,) = shares(cluster_of(10, 1, 1, replicas=[copy]))
    assert fast[1] == approx(1) and fast[2] == 0
    (only,) = shares(cluster_of(10, 1, 1, replicas=[copy], feature_paths=["replica"]))
    assert only[2] == approx(1)
    assert shares(cluster_of(0.1, 1, 1, replicas=[copy], feature_paths=["owner"])) == []


def test_hot_rows_answer_more_than_their_share():
    """The more of a part a batch reads, the less: a row is pulled once however often a batch reads it."""
    graph = community_graph()
    few, many, every = (profile_of(2, 2, features=(0.0, size)) for size in (1.0, 1e3, 1e12))
    cluster = cluster_of(1, 1, replicas=[{"part": 0, "machine": "m1", "rows": 0.2}], method="random")
    covered, less, least = (covered_reads(cluster, profile, lambda: graph)[0] for profile in (few, many, every))
    assert 0.19 < least < less < covered < 1 and least == approx(0.2, abs=0.01)
    everything = cluster_of(1, 1, replicas=[{"part": 0, "machine": "m1", "rows": 10**6}], method="random")
    assert covered_reads(everything, many, lambda: graph) == [1.0]
    (some,) = replica_shares(cluster, few, lambda: graph)
    assert some.shares[1] == approx(covered, abs=1 / 40)


def plan_of(*replicas):
    """Of a run whose first machine has a slow link, and a worker that reads nothing from other parts."""
    profile = profile_of(3, 3, features=FEATURES)
    for name in ("features", "lists"):
        for sizes in profile.transfer(name).bytes:
            sizes[0] = 0.0
    cluster, choices = cluster_of(0.1, 1, 1, replicas=replicas), PlanChoices("distdgl", "fair", Budget(10))
    return make_plan(PlannedRun(cluster, PipelineOptions(), profile), choices, Progress())


def test_a_plan_says_what_a_replica_would_bring_and_its_own_prediction_agrees():
    plan = plan_of()
    said = {change.what: change for change in plan.changes}
    change = said["a replica of part 0's features on m2"]
    assert change.gain > 0.3
    assert "a replica of part 0's features on m1" in said and not any("without" in what for what in said)
    having = plan_of({"part": 0, "machine": "m2"})
    assert having.predicted.iteration_s == approx(change.iteration_s, rel=0.02)
    (without,) = [each for each in having.changes if each.what == "without its replicas"]
    assert without.iteration_s == approx(plan.predicted.iteration_s, rel=0.02) and without.gain < 0
    sent = [{flows.kind: flows.bytes for flows in each.traffic}["features"] for each in (plan, having)]
    assert np.isclose(*sent)
