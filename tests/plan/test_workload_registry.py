"""A new execution mode is planned for with one file (toy_execution.py) and one line in a table."""

import pytest

from penstock.cost.profile import Profile
from penstock.hardware.cluster import ClusterDocument, Machine
from penstock.pipeline.options import PipelineOptions
from penstock.plan.document import read_plan, write_plan
from penstock.plan.placement import Budget
from penstock.plan.planner import PlanChoices, make_plan, replay
from penstock.plan.workloads import WORKLOADS, PlannedRun
from penstock.progress import Progress
from penstock.train.job import make_job
from refusals import refused
from training_graphs import community_graph
from whole_profiles import whole_profile


@pytest.mark.parametrize("mode", WORKLOADS)
def test_every_entry_is_complete(mode: str) -> None:
    entry = WORKLOADS[mode]
    cluster = ClusterDocument(machines=[Machine(name=name, nic_gbps=1) for name in ("a", "b")])
    graph = community_graph()
    job = make_job({"graph": "g"}, "The test")
    section = entry.set_up(PlannedRun(cluster, job, whole_profile(), open_graph=lambda: graph))
    assert entry.mode == mode
    assert entry.section.model_validate(section.model_dump(mode="json")) == section
    assert isinstance(entry.conditions(cluster), dict)


def test_an_unknown_mode_is_a_sentence() -> None:
    with refused("unknown-name minibatch mini-batch"):
        WORKLOADS["minibatch"]


def test_another_mode_is_planned_for_and_replayed(added, tmp_path) -> None:
    added(WORKLOADS, "ring", "toy_execution:RING")  # the one line
    profile = Profile.model_validate(
        {
            "mode": "ring",
            "job": {"graph": "g"},
            "iterations": 3,
            "batches": 5,
            "parts": 2,
            "workers": 2,
            "operators": [
                {"name": "layer", "device": device, "seconds": {"mean": mean}}
                for device, mean in (("cpu", 0.5), ("cuda", 0.1))
            ],
            "transfers": [{"name": "halo", "source": "shard", "target": "shard", "bytes": [[1.25e8]]}],
            "memory": [
                {"process": "shard", "gb": 2},
                *({"process": "activations", "device": device, "gb": 3} for device in ("cpu", "cuda")),
            ],
        }
    )
    cluster = ClusterDocument(machines=[Machine(name=name, nic_gbps=10, cores=4) for name in ("a", "b")])
    for device, seconds in (("cpu", 0.5), ("cuda", 0.1)):
        choices = PlanChoices("spread", "fair", Budget(10))
        plan = make_plan(PlannedRun(cluster, PipelineOptions(), profile, device), choices, Progress())
        # A halo takes 0.1 s over 10 Gbit/s, and the next layer waits for it.
        assert plan.predicted.iteration_s == pytest.approx(seconds + 0.1)
        assert plan.execution == {"mode": "ring", "shards": ["shard-a", "shard-b"], "device": device}
        assert {(task.kind, task.machine) for task in plan.tasks} == {("shard", "a"), ("shard", "b")}
        (halo,) = plan.traffic
        assert (halo.kind, halo.count, halo.bytes, halo.link_bytes) == ("halo", 2, 2.5e8, 2.5e8)
        # Two layers' activations at a time, beside what a shard holds anyway.
        if device == "cpu":
            assert plan.predicted.memory_gb == {"a": 8.0, "b": 8.0}
        else:
            assert plan.predicted.memory_gb == {"a": 2.0, "b": 2.0}
            assert plan.predicted.device_memory_gb == {"cuda": {"a": 6.0, "b": 6.0}}
        write_plan(plan, tmp_path / f"{device}.json")
        assert replay(read_plan(tmp_path / f"{device}.json"), "fair").pace.iteration_s == plan.predicted.iteration_s
