"""`penstock simulate`: what is printed and written, what is refused, and the commands of its page."""

import csv
import functools
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from in_process import answer, command, refusal

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = DOCS / "examples"
FIELDS = {
    "makespan_s", "lower_bound_s", "events", "seconds", "links", "critical_path", "policy", "iterations",
    "step_s", "bubble_fraction", "exposed_communication_s", "coflows", "fair_all_to_all_step_s",
}  # fmt: skip


def test_json_says_what_it_took_and_why(monkeypatch, capsys):
    found = answer(monkeypatch, capsys, "simulate", EXAMPLES / "exchange.yaml", "--policy", "fair")
    assert set(found) == FIELDS
    assert (found["policy"], found["iterations"], found["events"]) == ("fair", 6, 36)
    assert 0 < found["lower_bound_s"] <= found["makespan_s"]
    assert set(found["links"]) == {"near out", "far out", "near in", "far in"}
    # 12.5 MB an iteration at 125 MB/s.
    assert found["links"]["near out"]["utilisation"] == pytest.approx(0.6 / found["makespan_s"])
    path = found["critical_path"]
    assert set(path[0]) == {"name", "kind", "iteration", "start", "end", "waited", "waited_for"}
    assert path[0]["start"] == 0 and path[-1]["end"] == found["makespan_s"]
    assert sum(step["end"] - step["start"] for step in path) == pytest.approx(found["makespan_s"])


def test_compare_ranks_all_policies(monkeypatch, capsys):
    from penstock.simulate.rates import FLOW_POLICIES

    found = answer(monkeypatch, capsys, "simulate", EXAMPLES / "exchange.yaml", "--compare")
    assert set(found) == FIELDS | {"compared"}
    rows = found["compared"]
    assert {row["policy"] for row in rows} == {*FLOW_POLICIES, "hermod", "slack"}
    times = [row["makespan_s"] for row in rows]
    assert times == sorted(times) and rows[0]["ratio"] == 1 and rows[-1]["ratio"] == pytest.approx(times[-1] / times[0])
    assert {row["slowest_link"] for row in rows} == {"far out"}
    for row in rows:
        assert row["gap"] == pytest.approx(row["makespan_s"] / row["lower_bound_s"] - 1, abs=1e-9)
    mine = next(row for row in rows if row["policy"] == "oes")
    assert mine["makespan_s"] == found["makespan_s"]


def test_a_language_models_step(monkeypatch, capsys):
    from penstock.simulate.rates import COFLOW_POLICIES

    found = answer(monkeypatch, capsys, "simulate", EXAMPLES / "pipeline.yaml", "--compare")
    assert set(found) == FIELDS | {"compared"}
    assert (found["policy"], found["iterations"]) == ("slack", 2)
    assert set(found["coflows"]) == {"count", "mean_cct_s", "p95_cct_s"}
    assert 0 < found["exposed_communication_s"] < found["step_s"] <= found["makespan_s"]
    # Three stages wait for the fourth in a step of eight microbatches, and communication comes on top.
    assert found["bubble_fraction"] > 3 / 8
    rows = {row["policy"]: row for row in found["compared"]}
    assert set(rows) == set(COFLOW_POLICIES)
    # The default is the best of them: `hermod` is the slowest here.
    assert found["step_s"] == rows["slack"]["step_s"] == min(row["step_s"] for row in rows.values())
    assert rows["slack"]["step_s"] < rows["fair"]["step_s"] < rows["hermod"]["step_s"]


def test_few_queues_carry_an_order_out_as_well_as_they_can(monkeypatch, capsys):
    free, one, many = (
        answer(monkeypatch, capsys, "simulate", EXAMPLES / "pipeline.yaml", "--policy", "slack", *queues)["step_s"]
        for queues in ((), ("--queues", "1"), ("--queues", "64"))
    )
    fair = answer(monkeypatch, capsys, "simulate", EXAMPLES / "pipeline.yaml", "--policy", "fair")["step_s"]
    assert one == pytest.approx(fair)
    assert many == pytest.approx(free)


def test_queues_are_for_priorities(monkeypatch, capsys):
    queued = ("simulate", EXAMPLES / "exchange.yaml", "--policy", "oes", "--queues", "2")
    assert refusal(monkeypatch, capsys, *queued).code == "unsupported-combination"


def test_text_for_people(monkeypatch, capsys):
    code, out, err = command(monkeypatch, capsys, "simulate", EXAMPLES / "training.yaml", "--compare")
    assert (code, err) == (0, "")
    page = (DOCS / "simulating.md").read_text()
    (shown,) = re.findall(r"^```\n(oes:.*?)^```", page, re.S | re.M)
    assert out.startswith(shown)
    assert re.search(r"^Critical path: batch \d+ % \(\d+ % waiting, mostly for rack b up\), worker ", out, re.M)
    assert re.search(r"│ iteration-first +│ \d", out)


def test_transports_and_tenants_are_said(monkeypatch, capsys, tmp_path):
    document = yaml.safe_load((EXAMPLES / "training.yaml").read_text())
    document["transport"] = {"kind": "tcp", "hop_us": 500, "uplinks": 2}
    document["machines"][0]["background"] = {"gbps": 4}
    document["uplink_background_gbps"] = {"b": 1}
    (tmp_path / "shared.yaml").write_text(yaml.safe_dump(document))
    found = answer(monkeypatch, capsys, "simulate", tmp_path / "shared.yaml", "--policy", "fair")
    assert set(found) == FIELDS | {"transport", "makespan_without_tenants_s"}
    said = found["transport"]
    assert found["lower_bound_s"] <= found["makespan_s"] > said["fluid_makespan_s"]
    assert 0 < said["median_makespan_s"] <= said["p95_makespan_s"]
    assert 0 < said["late_flows"] <= 1 and said["mean_late_s"] > 0
    assert found["makespan_without_tenants_s"] < found["makespan_s"]
    _, out, _ = command(monkeypatch, capsys, "simulate", tmp_path / "shared.yaml", "--policy", "fair")
    assert "As a fluid it takes " in out and "Over 32 seeds of hashes and timeouts: " in out
    assert "Without other tenants it takes " in out


def test_the_commands_of_the_page_work(monkeypatch, capsys, tmp_path):
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    monkeypatch.chdir(tmp_path / "examples")
    lines = "".join(re.findall(r"^```sh\n(.*?)^```", (DOCS / "simulating.md").read_text(), re.S | re.M)).splitlines()
    assert len(lines) == 6
    for line in lines:
        name, *words = shlex.split(line)
        code, _, err = command(monkeypatch, capsys, *words)
        assert (name, code, err) == ("penstock", 0, ""), line
    assert "critical-path" in Path("timeline.html").read_text()
    assert {event["ph"] for event in json.loads(Path("trace.json").read_text())["traceEvents"]} == {"X", "M", "C"}


def test_the_commands_of_the_page_on_language_models_work(monkeypatch, capsys, tmp_path):
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    monkeypatch.chdir(tmp_path / "examples")
    # A smaller copy of the large one: the same file with fewer layers and microbatches.
    smaller = Path("mixtral.yaml").read_text().replace("mixtral-8x7b", "{preset: mixtral-8x7b, layers: 8}")
    Path("mixtral.yaml").write_text(smaller.replace("microbatches: 8", "microbatches: 2"))
    page = (DOCS / "language-models.md").read_text()
    lines = "".join(re.findall(r"^```sh\n(.*?)^```", page, re.S | re.M)).splitlines()
    assert len(lines) == 3
    for line in lines:
        name, *words = shlex.split(line)
        code, _, err = command(monkeypatch, capsys, *words)
        assert (name, code, err) == ("penstock", 0, ""), line


def test_only_language_models_have_devices_that_idle(monkeypatch, capsys):
    # Its tasks are called forward, as those of language models are.
    found = answer(monkeypatch, capsys, "simulate", EXAMPLES / "exchange.yaml")
    assert found["bubble_fraction"] is None


def test_iterations_replace_those_of_the_file(monkeypatch, capsys):
    found = answer(monkeypatch, capsys, "simulate", EXAMPLES / "exchange.yaml", "--iterations", 2)
    assert found["iterations"] == 2 and {step["iteration"] for step in found["critical_path"]} == {0, 1}


def test_a_workload_that_takes_no_time(monkeypatch, capsys, tmp_path):
    file = tmp_path / "idle.yaml"
    file.write_text("machines: [{name: a, nic_gbps: 1}]\ntasks: [{name: t, machine: a, seconds: 0}]\n")
    page, trace = tmp_path / "idle.html", tmp_path / "idle.json"
    found = answer(monkeypatch, capsys, "simulate", file, "--compare", "--timeline", page, "--timeline", trace)
    assert (found["makespan_s"], found["critical_path"], found["compared"][0]["gap"]) == (0, [], 0)
    assert "Nothing flows." in page.read_text() and json.loads(trace.read_text())
    code, out, _ = command(monkeypatch, capsys, "simulate", file)
    assert code == 0 and "nothing crosses one" in out


def test_refusals(monkeypatch, capsys, tmp_path):
    def said(*words):
        return refusal(monkeypatch, capsys, "simulate", *words)

    example = EXAMPLES / "exchange.yaml"
    assert said(example, "--policy", "fiar") == "No rate policy is called 'fiar': did you mean 'fair'?"
    assert said(example, "--policy", "maxmin") == "The rate policy 'maxmin' is called 'fair' now: use that name."
    assert "end its name in .html or .json" in said(example, "--timeline", tmp_path / "chart.svg")
    assert "does not exist: make it" in said(example, "--timeline", tmp_path / "nowhere" / "chart.html")
    assert "does not exist: name a workload file" in said(tmp_path / "none.yaml")
    cyclic = tmp_path / "cyclic.yaml"
    cyclic.write_text(example.read_text().replace("lag: 2", "lag: 0"))
    assert said(cyclic).code == "invalid-document"
    unplaced = tmp_path / "unplaced.yaml"
    unplaced.write_text(example.read_text().replace("machine: far", "machine: fra"))
    assert "No machine is called 'fra' (in task second): did you mean 'far'?" in said(unplaced)


def test_a_trace_of_coflows(monkeypatch, capsys):
    found = answer(monkeypatch, capsys, "simulate", EXAMPLES / "shuffles.yaml", "--compare")
    assert set(found) >= FIELDS - {"iterations", "fair_all_to_all_step_s"}
    assert (found["policy"], found["coflows"]["count"]) == ("sebf", 5)
    assert found["step_s"] is None and len(found["links"]) == 12
    assert 0 < found["lower_bound_s"] <= found["makespan_s"]
    rows = {row["policy"]: row for row in found["compared"]}
    assert set(rows) == {"fair", "fifo", "coflowsim-fair", "coflowsim-fifo", "sebf", "sincronia"}
    assert rows["sebf"]["mean_cct_s"] == found["coflows"]["mean_cct_s"] < rows["fifo"]["mean_cct_s"]
    assert "5 coflows take" in command(monkeypatch, capsys, "simulate", EXAMPLES / "shuffles.yaml", "--compare")[1]


def test_the_times_of_every_coflow_of_a_trace(monkeypatch, capsys, tmp_path):
    table = tmp_path / "coflows.csv"
    found = answer(monkeypatch, capsys, "simulate", EXAMPLES / "shuffles.yaml", "--out-coflows", table)
    times = found["coflow_times"]
    assert [row["coflow"] for row in times] == [1, 2, 3, 4, 5]
    assert sum(row["cct_s"] for row in times) / 5 == pytest.approx(found["coflows"]["mean_cct_s"])
    assert all(row["alone_s"] <= row["cct_s"] * (1 + 1e-9) for row in times)
    with table.open() as file:
        written = list(csv.DictReader(file))
    assert [{name: float(value) for name, value in row.items()} for row in written] == times


def test_the_times_of_every_coflow_of_a_workload(monkeypatch, capsys, tmp_path):
    table = tmp_path / "coflows.csv"
    found = answer(monkeypatch, capsys, "simulate", EXAMPLES / "pipeline.yaml", "--out-coflows", table)
    with table.open() as file:
        written = list(csv.DictReader(file))
    assert len(written) == found["coflows"]["count"]
    assert sum(float(row["cct_s"]) for row in written) / len(written) == pytest.approx(found["coflows"]["mean_cct_s"])
    assert {row["kind"] for row in written} == {"pp-forward", "pp-backward", "reduce", "gather"}
    said = refusal(monkeypatch, capsys, "simulate", EXAMPLES / "pipeline.yaml", "--out-coflows", tmp_path / "a.parquet")
    assert "ends in .csv" in said


def test_matchings_that_cost_more_than_they_save_are_said_to(monkeypatch, capsys, tmp_path):
    mixtral = (EXAMPLES / "mixtral.yaml").read_text().replace("nics: 1, nic_gbps: 100", "nics: 8, nic_gbps: 400")
    # A sixteenth of the layers on a quarter of the GPUs, so that it is soon done.
    for whole, part in (
        ("model: mixtral-8x7b", "model: {preset: mixtral-8x7b, layers: 2}"),
        ("pipeline: 8", "pipeline: 2"),
        ("count: 128", "count: 32"),
    ):
        assert whole in mixtral
        mixtral = mixtral.replace(whole, part)
    for schedule in ("bvn", "fair"):
        path = tmp_path / f"{schedule}.yaml"
        path.write_text(mixtral.replace("schedule: bvn", f"schedule: {schedule}"))
        found = answer(monkeypatch, capsys, "simulate", path)
        said = command(monkeypatch, capsys, "simulate", path)[1]
        if schedule == "bvn":
            assert found["step_s"] > found["fair_all_to_all_step_s"] > 0
            assert "Note: these matchings make a step" in said
        else:
            assert found["fair_all_to_all_step_s"] is None
            assert "Note:" not in said


def test_what_a_trace_does_not_have_is_refused(monkeypatch, capsys, tmp_path):
    trace = EXAMPLES / "shuffles.yaml"
    assert "--queues does not apply" in refusal(monkeypatch, capsys, "simulate", trace, "--queues", "4")
    assert "hermod" in refusal(monkeypatch, capsys, "simulate", trace, "--policy", "hermod")
    (tmp_path / "away.yaml").write_text("trace: {file: nowhere.txt}")
    assert "nowhere.txt" in refusal(monkeypatch, capsys, "simulate", tmp_path / "away.yaml")


def test_a_sweep_is_a_table_and_a_page(monkeypatch, capsys, tmp_path):
    workload, page = EXAMPLES / "training.yaml", tmp_path / "sweep.html"
    given = ["simulate", workload, "--iterations", "3", "--sweep", "nic_gbps=1,10", "--sweep", "workers=2,4"]
    found = answer(monkeypatch, capsys, *given, "--chart", page)
    assert [list(row["point"].values()) for row in found["sweep"]] == [[1, 2], [1, 4], [10, 2], [10, 4]]
    assert found["sweep"][0]["makespan_s"] > found["sweep"][2]["makespan_s"]
    text = page.read_text()
    assert 'aria-label="Time over nic_gbps"' in text and text.count('<path class="curve ') == 2
    assert ">workers 2</span>" in text and "4 combinations of nic_gbps, workers" in text
    code, out, _ = command(monkeypatch, capsys, *given)
    assert code == 0 and len(out.splitlines()) == 5 and "nic_gbps" in out


def test_a_swept_value_gives_what_the_file_with_it_gives(monkeypatch, capsys, tmp_path):
    fields = yaml.safe_load((EXAMPLES / "training.yaml").read_text())
    fields["oversubscription"] = 8
    (tmp_path / "changed.yaml").write_text(yaml.safe_dump(fields))
    alone = answer(monkeypatch, capsys, "simulate", tmp_path / "changed.yaml")
    (row,) = answer(monkeypatch, capsys, "simulate", EXAMPLES / "training.yaml", "--sweep", "oversubscription=8")[
        "sweep"
    ]
    assert row["makespan_s"] == alone["makespan_s"] and row["lower_bound_s"] == alone["lower_bound_s"]


def test_a_swept_trace_and_sweeps_that_are_refused(monkeypatch, capsys):
    rows = answer(monkeypatch, capsys, "simulate", EXAMPLES / "shuffles.yaml", "--sweep", "port_gbps=1,10")["sweep"]
    assert rows[0]["mean_cct_s"] > rows[1]["mean_cct_s"] and rows[0]["step_s"] is None
    refused = functools.partial(refusal, monkeypatch, capsys, "simulate", EXAMPLES / "training.yaml")
    assert "--sweep and --compare cannot be combined" in refused("--sweep", "seed=1,2", "--compare")
    assert "With seed=-1" in refused("--sweep", "seed=-1")
    assert "did you mean 'iterations'?" in refused("--sweep", "iteration=3")
