"""A whole-graph job is measured, planned for and simulated with the commands that other jobs have."""

import json

import pytest
import yaml

from in_process import answer, command, refusal
from training_graphs import community_graph


@pytest.fixture
def files(tmp_path):
    graph = community_graph().save(tmp_path / "graph")
    job = {"graph": str(graph.path), "sampler": "whole", "layers": 2, "hidden": 16, "bins": 3, "model": "gcn"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    machines = [{"name": name, "cores": 4, "nic_gbps": 0.01} for name in ("a", "b", "c")]
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump({"machines": machines}))
    return tmp_path


def test_measured_planned_and_simulated(monkeypatch, capsys, files):
    job, cluster, profile = files / "job.yaml", files / "cluster.yaml", files / "profile.json"
    measured = answer(monkeypatch, capsys, "profile", job, "--iterations", "2", "--out", profile)
    assert measured["mode"] == "whole" and set(measured["seconds"]) == {
        "message",
        *(f"{way} {layer}" for way in ("forward", "backward") for layer in range(2)),
    }
    sizes = [each["sizes"] for each in json.loads(profile.read_text())["operators"] if each["name"] == "forward 1"]
    assert len(sizes) > 3 and all(each["width_in"] == 16 for each in sizes)
    assert max(each["rows"] for each in sizes) > 3 * min(each["rows"] for each in sizes)

    made = files / "plan.json"
    given = ("--cluster", cluster, "--profile", profile)
    drawn = files / "plan.html"
    plan = answer(monkeypatch, capsys, "plan", job, *given, "--out", made, "--timeline", drawn)
    assert "backward of layer 0, bin 1, worker 2" in drawn.read_text()
    assert 0 < plan["predicted"]["placement_bound_s"] <= plan["predicted"]["iteration_s"]
    execution = json.loads(made.read_text())["execution"]
    assert (execution["mode"], execution["bins"], execution["exchange"]) == ("whole", 3, "bins")

    page = files / "timeline.html"
    simulated = answer(monkeypatch, capsys, "simulate", made, "--iterations", "2", "--timeline", page)
    assert simulated["iteration_s"] == plan["predicted"]["iteration_s"]
    assert "forward of layer 1, bin 2, worker 0" in page.read_text()

    code, out, _ = command(monkeypatch, capsys, "plan", job, *given, "--sweep", "exchange=bins,layer", "--json")
    assert code == 0
    bins, layer = json.loads(out)["sweep"]
    assert {name: bins[name] for name in ("placement", "flows", "bottleneck", "iteration_s")} == {
        **{name: plan[name] for name in ("placement", "flows", "bottleneck")},
        "iteration_s": plan["predicted"]["iteration_s"],
    }
    assert layer["iteration_s"] > 0 and layer["iteration_s"] != bins["iteration_s"]


def test_links_of_unknown_speed_are_a_sentence(monkeypatch, capsys, files):
    job, profile = files / "job.yaml", files / "profile.json"
    answer(monkeypatch, capsys, "profile", job, "--iterations", "1", "--out", profile)
    said = refusal(
        monkeypatch, capsys, "plan", job, "--cluster", "2x1", "--profile", profile, "--out", files / "p.json"
    )
    assert "nic_gbps" in str(said)
