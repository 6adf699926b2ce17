"""A plan of one machine, written down and carried out by `penstock train --plan`."""

import json

import pytest

from in_process import answer, command, refusal
from operator_profiles import gpu_profile, operator_profile
from penstock.cost.profile import write_profile
from penstock.graph.folder import write_graph
from refusals import check_refusal
from training_graphs import community_graph, facts_of

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
    assert "decisions" not in alone
    assert facts_of(tmp_path / "alone")["result"]["loss_so_far"] == facts_of(tmp_path / "run")["result"]["loss_so_far"]
    longer = answer(monkeypatch, capsys, "train", "--resume", tmp_path / "run", "--epochs", 3)
    assert longer["decisions"] == decisions


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
