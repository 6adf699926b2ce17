"""A whole-graph plan is carried out, and the rows that travel are those that it predicted."""

import pytest

from penstock.api import train
from penstock.cluster.planning import plan_run
from penstock.cluster.profiling import profile_job
from penstock.cost.profile import write_profile
from penstock.hardware.cluster import ClusterDocument, Machine
from penstock.plan.document import write_plan
from penstock.plan.placement import Budget
from penstock.plan.planner import PlanChoices
from penstock.progress import SILENT
from penstock.train.job import make_job
from training_graphs import community_graph, facts_of, typed_graph

EPOCHS = 3


@pytest.mark.parametrize(
    ("make", "model"), [(community_graph, "sage"), pytest.param(typed_graph, "rgcn", marks=pytest.mark.long)]
)
def test_bytes_are_those_of_the_plan(tmp_path, make, model) -> None:
    graph = make().save(tmp_path / "graph")
    fields = {"graph": str(graph.path), "sampler": "whole", "layers": 2, "hidden": 16, "epochs": EPOCHS, "threads": 1}
    job = make_job(
        {**fields, "run": str(tmp_path / "run"), "evaluate_every": -1, "bins": 2, "model": model}, "The test"
    )
    cluster = ClusterDocument(machines=[Machine(name=name, nic_gbps=1, cores=2) for name in ("a", "b")])
    write_profile(profile_job(job, cluster, 1, SILENT), tmp_path / "profile.json")
    plan = plan_run(job, cluster, tmp_path / "profile.json", PlanChoices(None, None, Budget(10)), SILENT)
    write_plan(plan, tmp_path / "plan.json")
    result = facts_of(train(plan=tmp_path / "plan.json").path)["result"]
    assert plan.predicted.iteration_s == pytest.approx(result["predicted"]["iteration_s"])
    assert result["bins"] == [2, 2]
    decisions = result["decisions"]
    assert decisions.keys() == {"tasks", "flows", "stores", "servers", "bins", "exchange", "pipeline", "device"}
    assert all(each["planned"] == each["carried_out"] for each in decisions.values())
    assert "simulated" in decisions["tasks"]["why"] and "simulated" in decisions["bins"]["why"]
    sent = sum(sum(sizes) for name, sizes in result["flows"].items() if name.endswith("/rows"))
    planned = sum(each.bytes for each in plan.traffic if each.kind.startswith("layer")) * EPOCHS
    # Headers come on top, of an array for each type.
    assert planned <= sent <= planned + 1_500 * EPOCHS * len(graph.nodes)
    received = [bins[0] for layer in plan.execution["layers"] for sender in layer["sent"] for bins in sender]
    assert result["halo_rows"] == sum(received)
