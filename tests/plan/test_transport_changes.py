"""What a plan says of ways to send fewer bytes."""

import numpy as np
import pytest
from pytest import approx

from penstock.hardware.cluster import ClusterDocument
from penstock.pipeline.options import PipelineOptions
from penstock.plan.changes import transport_advice
from penstock.plan.document import Change
from penstock.plan.placement import Budget
from penstock.plan.planner import PlanChoices, make_plan
from penstock.plan.workloads import PlannedRun
from penstock.progress import Progress
from plan_profiles import profile_of
from training_graphs import community_graph


def wide_graph(width=64):
    graph = community_graph()
    nodes = graph.nodes["node"]
    nodes.fields["x"] = np.zeros((nodes.count, width), np.float32)
    return graph


def plan_on(gbps, sampler="neighbour", graph=None, **more):
    machines = [{"name": f"m{number}", "nic_gbps": gbps, "cores": 64} for number in range(2)]
    cluster = ClusterDocument(machines=machines, method="random", **more)
    profile = profile_of(2, 2, features=(51_200.0, 12_800.0), gradients=1e3)
    job = {"sampler": sampler, "fanouts": [4, 3], "features": "x"}
    profile = profile.model_copy(update={"job": job})
    run = PlannedRun(cluster, PipelineOptions(), profile, open_graph=lambda: graph or wide_graph())
    return make_plan(run, PlanChoices("distdgl", "fair", Budget(10)), Progress())


def test_slow_links_get_every_way_with_its_bytes():
    plan = plan_on(0.0001)
    said = {change.what.split(":")[1].strip(): change for change in plan.changes if change.feature_bytes is not None}
    plain = said["float16"].feature_bytes / 0.5
    assert said["int8"].feature_bytes == approx(plain * 68 / 256)
    assert 0.3 * plain < said["explained"].feature_bytes < 0.85 * plain
    assert said["int8"].gain > said["float16"].gain > 0 and said["int8"].gain > said["explained"].gain > 0
    together = [change for change in plan.changes if " with " in change.what]
    assert len(together) == 2 and all(change.feature_bytes < said["int8"].feature_bytes for change in together)
    # With int8, rows of some columns are not cached.
    assert not any("explained" in change.what and "remote_cache_mb" in change.what for change in together)
    assert plan.advice.startswith("Links limit this run") and "wire_type: int8" in plan.advice
    single = sorted(said.values(), key=lambda change: -change.gain)
    named = [plan.advice.find(change.what) for change in single if " with " not in change.what]
    assert min(named) > 0 and named == sorted(named)


def test_fast_links_need_no_advice():
    plan = plan_on(100.0)
    assert plan.advice == ""
    assert all(change.gain == 0 for change in plan.changes if change.feature_bytes is not None)


def test_what_is_set_already_is_not_advised():
    plan = plan_on(0.0001, wire_type="int8", remote_cache_mb=1)
    assert [change.what for change in plan.changes if change.feature_bytes is not None] == ["sampler: explained"]
    names = [change.what for change in plan_on(0.0001, "labor").changes if change.feature_bytes is not None]
    assert not any("explained" in name for name in names) and len(names) == 4


@pytest.mark.parametrize("gain, said", [(0.0, ""), (0.3, "remote_cache_mb: 1 alone would save 30 %")])
def test_advice_names_what_helps(gain, said):
    changes = [Change(what="remote_cache_mb: 1", iteration_s=1.0, gain=gain, feature_bytes=1.0)]
    assert said in transport_advice(changes) and bool(transport_advice(changes)) == bool(said)
