"""The plan on disk."""

import json

import pytest

from penstock.plan.document import Effort, Plan, PlannedTask, Predicted, read_plan, write_plan
from refusals import refused


def plan(**changes) -> Plan:
    fields = {
        "job": {"graph": "g"},
        "cluster": {"machines": [{"name": "m0"}]},
        "execution": {"mode": "mini-batch", "stores": ["store-m0"]},
        "profile": {},
        "placement": "search",
        "flows": "fair",
        "tasks": [
            PlannedTask(id="store-m0", kind="store", machine="m0"),
            PlannedTask(id="worker-0", kind="worker", machine="m0"),
        ],
        "predicted": Predicted(
            iteration_s=0.1, epoch_s=2, lower_bound_s=0.09, link_bytes={}, link_utilisation={}, memory_gb={"m0": 1}
        ),
        "bottleneck": "worker-0 on m0 spends 90% of the time on computing.",
        "compared": [],
        "search": Effort(steps=1, seconds=0.1, simulated=1),
    }
    return Plan.model_validate({**fields, **changes})


def test_comes_back_as_it_was_written(tmp_path) -> None:
    write_plan(plan(), tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan()
    assert plan().machine_of() == {"store-m0": "m0", "worker-0": "m0"}


@pytest.mark.parametrize(
    ("flows", "egress"),
    [("fair", "fair"), ("oes", "fair"), ("fifo", "fifo"), ("iteration-first", "turns"), ("hermod", "coflow")],
)
def test_flow_policies_that_a_run_carries_out(flows: str, egress: str) -> None:
    assert plan(flows=flows).egress == egress


def test_others_are_refused_when_they_are_to_be_carried_out() -> None:
    with refused("unsupported-combination"):
        _ = plan(flows="mrtf").egress


def test_missing_and_broken_plans_are_sentences(tmp_path) -> None:
    with refused("file-not-found"):
        read_plan(tmp_path / "none.json")
    path = tmp_path / "plan.json"
    fields = json.loads(plan().model_dump_json())
    path.write_text(json.dumps({**fields, "version": 9}))
    with refused("unsupported-version 9 penstock plan"):
        read_plan(path)
    path.write_text(json.dumps({**fields, "tasks": "none"}))
    with refused("invalid-document tasks"):
        read_plan(path)
