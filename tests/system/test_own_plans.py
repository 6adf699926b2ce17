"""A run on a cluster without a plan writes the one that it carries out, and another run repeats it to the bit."""

import json

import pytest

from cluster_runs import JOB, assert_same_losses, cluster_file, machines, result_of, run_on
from in_process import refusal
from penstock.api import train
from penstock.graph.folder import write_graph
from penstock.plan.document import read_plan, write_plan
from refusals import check_refusal, refused
from training_graphs import assert_same_state, community_graph, newest_checkpoint, typed_graph

WHOLE = {"sampler": "whole", "layers": 2, "model": "gcn", "dropout": 0.3, "epochs": 2}
TYPED = {"model": "rgcn", "embedding": 8, "epochs": 2}


def repeated(folder, name="again"):
    """The run of the plan that another run has written."""
    run = train(plan=folder / "run" / "plan.json", run=folder / name)
    assert_same_losses(run.path, folder / "run", 0)
    assert_same_state(newest_checkpoint(run.path)["learned"], newest_checkpoint(folder / "run")["learned"])
    return run


@pytest.mark.parametrize(
    ("make", "fields", "cluster"),
    [
        (community_graph, {}, {"wire": {"egress": "turns"}, "samplers": 1}),
        (community_graph, WHOLE, {}),
        pytest.param(typed_graph, TYPED, {"reduce": "servers"}, marks=pytest.mark.long),
    ],
    ids=["mini-batches", "whole graph", "several types"],
)
def test_a_run_without_a_plan_is_repeated_from_its_own(make, fields, cluster, tmp_path) -> None:
    """Each decision has its reason, and stands beside what was done; machines of other speeds keep their shares."""
    graph = make().save(tmp_path / "graph")
    seats = [{"name": "fast", "speed": 2.0}, {"name": "slow"}]
    run_on(cluster_file(tmp_path, machines=seats, **cluster), graph.path, tmp_path / "run", **fields)
    plan, first = read_plan(tmp_path / "run" / "plan.json"), result_of(tmp_path / "run")["decisions"]
    assert {
        name: each for name, each in first.items() if each["planned"] != each["carried_out"] or not each["why"]
    } == {}
    assert first["shares"]["carried_out"] == [2 / 3, 1 / 3]
    assert first["partition"]["planned"]["method"] == "metis"
    assert plan.cluster["partition"] is None and plan.job["graph"] == str(graph.path)
    assert plan.machine_of() == first["tasks"]["carried_out"]
    assert "store-fast" in plan.machine_of() and plan.machine_of()["worker-1"] == "slow"
    assert plan.egress == cluster.get("wire", {}).get("egress", "fair")
    again = repeated(tmp_path)
    assert again.result["decisions"] == first
    assert (again.path / "plan.json").read_text() == (tmp_path / "run" / "plan.json").read_text()
    page = (again.path / "report.html").read_text()
    assert "carried out" in page and "by the `speed` of their machines" in page


def test_a_plan_keeps_each_workers_bins(tmp_path) -> None:
    """What the job leaves open is not decided anew: here the second worker has more bins than it would choose."""
    graph = community_graph().save(tmp_path / "graph")
    run_on(cluster_file(tmp_path, machines=machines(1, 1)), graph.path, tmp_path / "run", **WHOLE)
    plan = read_plan(tmp_path / "run" / "plan.json")
    (first,), (second,) = plan.execution["steps"]
    assert first["bins"] == [1, 1]
    plan.execution["steps"] = [[first], [{**second, "bins": [3, 2]}]]
    write_plan(plan, tmp_path / "plan.json")
    decisions = train(plan=tmp_path / "plan.json", run=tmp_path / "again").result["decisions"]
    assert decisions["steps"]["carried_out"] == plan.execution["steps"]


def test_a_plan_of_another_graph_or_cluster_is_refused(tmp_path, monkeypatch, capsys) -> None:
    """Before a task is started, and nothing is left behind."""
    graph = community_graph().save(tmp_path / "graph")
    run_on(cluster_file(tmp_path, machines=machines(1, 1)), graph.path, tmp_path / "run", **{**JOB, "epochs": 1})
    path = tmp_path / "run" / "plan.json"
    said = refusal(monkeypatch, capsys, "train", "--plan", path, "--cluster", "2x1")
    check_refusal(said.code, said, "conflicting-options --plan")
    said = refusal(monkeypatch, capsys, "train", "--plan", path, "--graph", tmp_path / "other")
    check_refusal(said.code, said, "conflicting-options plan graph")
    said = refusal(monkeypatch, capsys, "simulate", path)
    check_refusal(said.code, said, "missing-data profile penstock train --plan")
    plan = json.loads(path.read_text())
    for change, expected in (
        ({"cluster": {**plan["cluster"], "machines": [{"name": "m0"}, {"name": "m9"}]}}, "worker-1 m1 cluster"),
        ({"cluster": {**plan["cluster"], "machines": [{"name": "m0"}]}}, "parts graph"),
        ({"execution": {**plan["execution"], "shares": [1.0]}}, "1 workers 2 workers shares"),
        ({"execution": {**plan["execution"], "shares": "all"}}, "execution.shares list"),
        ({"execution": {**plan["execution"], "partition": "metis"}}, "execution.partition"),
        ({"execution": {**plan["execution"], "partition": {"method": "metis"}}}, "metis parts graph"),
    ):
        (tmp_path / "changed.json").write_text(json.dumps({**plan, **change}))
        code = "invalid-document" if "execution." in expected else "mismatched-inputs"
        with refused(f"{code} {expected}"):
            train(plan=tmp_path / "changed.json", run=tmp_path / "again")
        assert not (tmp_path / "again").exists()
    write_graph(community_graph(seed=5), graph.path, force=True)
    with refused("mismatched-inputs parts graph edges"):
        train(plan=path, run=tmp_path / "again")
    assert not (tmp_path / "again").exists()
