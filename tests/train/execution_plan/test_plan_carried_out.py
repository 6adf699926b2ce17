"""A plan of one machine, written down and carried out by `penstock train --plan`."""

import json

import pytest

from in_process import answer, command, refusal
from operator_profiles import gpu_profile, operator_profile
from penstock.api import train
from penstock.cost.profile import write_profile
from penstock.graph.folder import write_graph
from penstock.plan.document import read_plan
from penstock.train.job import job_of
from penstock.train.run import carry_out_plan, planned_job, start_run
from refusals import check_refusal, refused
from training_graphs import community_graph, facts_of, trained

JOB = ["--fanouts", "4,3", "--hidden", "8", "--batch-size", "16", "--threads", "2"]


@pytest.fixture
def planned(tmp_path, monkeypatch, capsys):
    """`planned(profile, *flags)`: the plan's file, for a machine with that profile."""
    write_graph(community_graph(), tmp_path / "graph")

    def plan(profile, *flags):
        write_profile(profile, tmp_path / "machine.json")
        given = ["--graph", tmp_path / "graph", "--machine", tmp_path / "machine.json", *JOB, *flags]
        shown = answer(monkeypatch, capsys, "plan", *given, "-o", tmp_path / "plan.json")
        assert shown["path"] == str(tmp_path / "plan.json")
        return tmp_path / "plan.json"

    return plan


def test_what_was_planned_is_done(planned, tmp_path, monkeypatch, capsys):
    """Every decision stands beside what was done, and the run is that of a job which asks for all of it."""
    path = planned(operator_profile(), "--device", "cpu")
    plan = json.loads(path.read_text())
    result = answer(monkeypatch, capsys, "train", "--plan", path, "--epochs", 2, "--run", tmp_path / "run")
    decisions = result["decisions"]
    names = {"device", "sampled_by", "features", "cache_rows", "first_layer", "order", "sample_threads", "groups"}
    assert decisions.keys() == names
    assert all(each["planned"] == each["carried_out"] for each in decisions.values())
    assert decisions["first_layer"]["planned"] == plan["execution"]["first_layer"] == "aggregate"
    assert result["predicted"]["epoch_s"] == plan["predicted"]["epoch_s"] > 0
    assert json.loads((tmp_path / "run" / "plan.json").read_text()) == plan
    page = (tmp_path / "run" / "report.html").read_text()
    assert "an epoch, as planned" in page and "carried out" in page
    own = ["--graph", tmp_path / "graph", *JOB, "--device", "cpu", "--first-layer", "aggregate", "--epochs", 2]
    alone = answer(monkeypatch, capsys, "train", *own, "--run", tmp_path / "alone")
    assert alone["decisions"]["first_layer"] == {
        "planned": "aggregate", "carried_out": "aggregate", "why": "The job has 'aggregate'."
    }  # fmt: skip
    assert facts_of(tmp_path / "alone")["result"]["loss_so_far"] == facts_of(tmp_path / "run")["result"]["loss_so_far"]
    longer = answer(monkeypatch, capsys, "train", "--resume", tmp_path / "run", "--epochs", 3)
    assert longer["decisions"] == decisions


def losses_of(run):
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert found
    return [(line["kind"], line.get("loss"), line.get("train_loss"), line.get("val")) for line in found]


@pytest.mark.parametrize(
    "flags",
    [
        ["--model", "sage", *JOB],
        ["--model", "gcn", "--sampler", "whole", "--layers", "2", "--hidden", "8", "--keep", "disk"],
    ],
)
def test_a_run_without_a_plan_writes_the_one_it_carries_out(flags, tmp_path, monkeypatch, capsys):
    """The plan of a run has each decision with its reason, and another run carries it out to the bit."""
    write_graph(community_graph(), tmp_path / "graph")
    own = ["--graph", tmp_path / "graph", *flags, "--device", "cpu", "--epochs", "2"]
    first = answer(monkeypatch, capsys, "train", *own, "--run", tmp_path / "run")
    plan = read_plan(tmp_path / "run" / "plan.json")
    assert plan.reasons.keys() >= first["decisions"].keys() and all(plan.reasons.values())
    assert all(each["planned"] == each["carried_out"] for each in first["decisions"].values())
    assert plan.predicted is not None or "not predicted" in plan.notes[0]
    assert "carried out" in (tmp_path / "run" / "report.html").read_text()
    given = ["--plan", tmp_path / "run" / "plan.json", "--run", tmp_path / "again"]
    again = answer(monkeypatch, capsys, "train", *given)
    assert losses_of(tmp_path / "again") == losses_of(tmp_path / "run")
    assert again["decisions"] == first["decisions"]


def test_a_plan_keeps_its_bins_where_the_job_leaves_them_open(tmp_path):
    """The bins of a run follow the memory that was free; its plan's are carried out also where there is more."""
    write_graph(community_graph(), tmp_path / "graph")
    fields = {"graph": str(tmp_path / "graph"), "sampler": "whole", "layers": 2, "hidden": 8, "device": "cpu"}
    start_run(job_of({**fields, "model": "sage", "epochs": 1, "bins": 3, "run": str(tmp_path / "run")}))
    plan = read_plan(tmp_path / "run" / "plan.json")
    (step,) = plan.execution["steps"]
    assert max(step["bins"]) == 3
    is_open = plan.model_copy(update={"job": {**plan.job, "bins": "auto"}})
    carry_out_plan(is_open, planned_job(is_open, tmp_path / "plan.json", {"run": str(tmp_path / "again")}, False))
    assert facts_of(tmp_path / "again")["result"]["decisions"]["steps"]["carried_out"] == [step]
    assert losses_of(tmp_path / "again") == losses_of(tmp_path / "run")
    with refused("mismatched-inputs bins"):
        planned_job(plan, tmp_path / "plan.json", {"bins": 2}, False)


def test_a_plan_of_objects_is_refused(tmp_path):
    trained(community_graph(), tmp_path / "run", epochs=1, batch_size=16, fanouts=[2])
    with refused("unsupported-combination graph objects"):
        train(plan=tmp_path / "run" / "plan.json", run=tmp_path / "again")


def test_a_plan_for_another_machine_says_so(planned, tmp_path, monkeypatch, capsys):
    path = planned(operator_profile(), "--device", "cpu")
    run = answer(monkeypatch, capsys, "train", "--plan", path, "--epochs", 1, "--run", tmp_path / "run")
    assert any("a made processor, 2 cores; GPU: none" in note for note in run["notes"])


def test_a_plan_is_not_changed_in_passing(planned, tmp_path, monkeypatch, capsys):
    path = planned(operator_profile(), "--device", "cpu")
    for flag, value in (("--fanouts", "3,3"), ("--first-layer", "gather"), ("--sample-threads", "3")):
        said = refusal(monkeypatch, capsys, "train", "--plan", path, flag, value, "--run", tmp_path / "run")
        check_refusal(said.code, said, f"mismatched-inputs {flag[2:].replace('-', '_')}")
    assert not (tmp_path / "run").exists()


def test_a_plan_for_a_gpu_needs_one(planned, tmp_path, monkeypatch, capsys):
    """The plan decides for the GPU of the measured machine; features' place and who draws are in its job."""
    path = planned(gpu_profile(), "--device", "auto")
    plan = json.loads(path.read_text())
    job, decided = plan["job"], plan["execution"]
    assert (job["device"], job["sample_on"]) == ("cuda", "device") and decided["sampled_by"] == "cuda"
    assert job["placement"]["features"] == decided["features"]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said = refusal(monkeypatch, capsys, "train", "--plan", path, "--run", tmp_path / "run")
    check_refusal(said.code, said, "device-not-found cuda")


def test_plans_of_one_machine_have_no_network(planned, tmp_path, monkeypatch, capsys):
    path = planned(operator_profile(), "--device", "cpu")
    said = refusal(monkeypatch, capsys, "simulate", path)
    check_refusal(said.code, said, "unsupported-combination one machine penstock train --plan")
    code, shown, _ = command(monkeypatch, capsys, "compare", path, path)
    assert code == 0 and "epoch_s" in shown


def test_where_a_plan_is_written(planned, tmp_path, monkeypatch, capsys):
    path = planned(operator_profile(), "--device", "cpu")
    before = path.read_text()
    given = ["plan", "--graph", tmp_path / "graph", *JOB]
    said = refusal(monkeypatch, capsys, *given, "--machine", tmp_path / "machine.json", "-o", path)
    check_refusal(said.code, said, "file-exists plan.json --force")
    said = refusal(monkeypatch, capsys, *given, "--machine", "arm-host,h200", "-o", tmp_path / "two.json")
    check_refusal(said.code, said, "conflicting-options --machine -o")
    assert path.read_text() == before and not (tmp_path / "two.json").exists()
