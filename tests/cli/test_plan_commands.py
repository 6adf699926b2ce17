"""`penstock plan` and what becomes of its plan, without a run."""

import functools
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from in_process import answer, command, refusal
from penstock.cli.plan import _print_changes
from penstock.cost.profile import deciding, write_profile
from penstock.formatting import percent
from penstock.graph.generate import make_graph, recipe_named
from penstock.plan.document import Change
from penstock.train.job import make_job
from plan_profiles import profile_of
from refusals import refused

JOB = ["--graph", "synthetic-arxiv", "--hidden", "8"]
SET_UP = {"wire_type": "stored", "reduce": "all-reduce", "servers": 0}


@pytest.fixture(scope="module")
def data_sets(tmp_path_factory):
    """A folder with a hundredth of the data set that jobs here name: plans read the graph and cut it."""
    folder = tmp_path_factory.mktemp("data-sets")
    make_graph(recipe_named("synthetic-arxiv").scaled(0.01), folder / "synthetic-arxiv")
    return folder


@pytest.fixture(autouse=True)
def _small_graph(monkeypatch, data_sets):
    monkeypatch.setattr("penstock.graph.generate.make.cache_folder", lambda: data_sets)


@pytest.fixture
def files(tmp_path):
    """A cluster of unequal machines, and a profile for it."""
    job = make_job({"graph": "synthetic-arxiv", "hidden": 8})
    write_profile(
        profile_of(2, 3, job=deciding(job.model_dump(mode="json")), cluster=SET_UP), tmp_path / "profile.json"
    )
    machines = [
        {"name": "slow", "workers": 2, "cores": 4, "nic_gbps": 0.1},
        {"name": "fast", "workers": 1, "cores": 4, "nic_gbps": 1},
    ]
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump({"machines": machines}))
    return tmp_path


def planned(monkeypatch, capsys, files, *words):
    given = ["--cluster", files / "cluster.yaml", "--profile", files / "profile.json", "--steps", "200"]
    return command(monkeypatch, capsys, "plan", *JOB, *given, "--out", files / "plan.json", *words)


def test_a_plan_for_machines_and_people(monkeypatch, capsys, files):
    code, out, _ = planned(monkeypatch, capsys, files, "--json")
    assert code == 0
    found = json.loads(out)
    assert {"path", "predicted", "compared", "bottleneck", "search"} <= set(found)
    assert set(found["predicted"]) == {"iteration_s", "epoch_s", "epoch_p95_s", "lower_bound_s", "placement_bound_s"}
    assert {"placement", "flows", "iteration_s", "epoch_s", "gap"} <= set(found["compared"][0])
    assert {"steps", "seconds", "simulated", "simulations", "judged_iterations"} <= set(found["search"])
    best = min(found["compared"], key=lambda row: row["iteration_s"])
    assert best["iteration_s"] == found["predicted"]["iteration_s"]
    assert found["predicted"]["epoch_p95_s"] >= found["predicted"]["epoch_s"] and found["slow"] == []
    code, out, _ = planned(monkeypatch, capsys, files, "--force", "--slow", "slow=0.5")
    assert code == 0 and " of the time " in out and "one more machine like fast" in out
    assert "slow at 50 % of its speed, planned for that: " in out and "95 of 100 take less than" in out
    assert " -0" not in out and "(-0" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--placement", "serach"], "did you mean 'search'"),
        (["--flows", "fiar"], "did you mean 'fair'"),
        (["--flows", "maxmin"], "is called 'fair' now"),
        (["--slow", "fats=0.5"], "did you mean 'fast'"),
        (["--slow", "fast=2"], "names no slow machine"),
        (["--hidden", "16"], "is the profile of another job: it has hidden 8 where"),
        (["--device", "cuda"], "GPU"),
        (["--profile", "none.json"], "penstock profile JOB"),
        (["--out", "nowhere/plan.json"], "There is no folder nowhere"),
    ],
)
def test_what_cannot_be_is_one_sentence(monkeypatch, capsys, files, words, said):
    monkeypatch.chdir(files)
    code, out, err = planned(monkeypatch, capsys, files, *words)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())
    assert not (files / "plan.json").exists()


def test_too_little_is_named(monkeypatch, capsys, files):
    document = yaml.safe_load((files / "cluster.yaml").read_text())
    for machine in document["machines"]:
        machine["cores"] = 2
    (files / "cluster.yaml").write_text(yaml.safe_dump(document))
    code, _, err = planned(monkeypatch, capsys, files)
    assert code == 2 and "cores" in err


def test_a_plan_is_kept_unless_told_otherwise(monkeypatch, capsys, files):
    (files / "plan.json").write_text("mine")
    code, _, err = planned(monkeypatch, capsys, files)
    assert code == 2 and "add --force" in " ".join(err.split())
    assert (files / "plan.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hidden", "16"], "The plan was made for hidden 8, not 16"),
        (["--sample-threads", "9"], "The plan was made for sample_threads 'auto', not 9"),
        (["--cluster", "2x1"], "give --plan alone"),
    ],
)
def test_a_plan_is_carried_out_as_it_stands(monkeypatch, capsys, files, words, said):
    assert planned(monkeypatch, capsys, files)[0] == 0
    run = ["--run", files / "run"]
    code, _, err = command(monkeypatch, capsys, "train", "--plan", files / "plan.json", *run, *words)
    assert code == 2 and said in " ".join(err.split())
    assert not (files / "run").exists()


def test_a_plan_of_other_tasks_is_refused(monkeypatch, capsys, files):
    from penstock.cluster.layout import lay_out
    from penstock.hardware.cluster import ClusterDocument
    from penstock.plan.document import read_plan

    assert planned(monkeypatch, capsys, files)[0] == 0
    plan = read_plan(files / "plan.json")
    cluster, where = ClusterDocument.model_validate(plan.cluster), plan.machine_of()
    assert {task.id: task.machine for task in lay_out(cluster, 2, where).tasks} == where
    for wrong in ({"store-slow": "fast"}, {"worker-9": "fast"}, {"worker-0": "moon"}):
        with refused("mismatched-inputs"):
            lay_out(cluster, 2, {**where, **wrong})
    with refused("mismatched-inputs worker-0"):
        lay_out(cluster, 2, {name: each for name, each in where.items() if name != "worker-0"})


def test_workers_go_where_gpus_are(monkeypatch, capsys, files):
    """Whatever the cluster file says of workers: where they go is the plan's to decide."""
    document = yaml.safe_load((files / "cluster.yaml").read_text())
    document["machines"][1].update(gpus=3, cores=16)
    (files / "cluster.yaml").write_text(yaml.safe_dump(document))
    code, _, _ = planned(monkeypatch, capsys, files, "--device", "cuda")
    assert code == 0
    tasks = json.loads((files / "plan.json").read_text())["tasks"]
    assert {task["machine"] for task in tasks if task["kind"] == "worker"} == {"fast"}
    assert {task["gpus"] for task in tasks if task["kind"] == "worker"} == {1.0}
    document["machines"][1]["gpus"] = 2
    (files / "cluster.yaml").write_text(yaml.safe_dump(document))
    code, _, err = planned(monkeypatch, capsys, files, "--device", "cuda", "--force")
    assert code == 2 and "3 workers and 2 GPUs" in " ".join(err.split())
    (files / "cluster.yaml").write_text(yaml.safe_dump({**document, "share_gpus": True}))
    assert planned(monkeypatch, capsys, files, "--device", "cuda", "--force")[0] == 0


def test_what_was_measured_on_a_gpu_is_planned_with(monkeypatch, capsys, files):
    """On a machine without one: the profile says what a step takes there."""
    document = yaml.safe_load((files / "cluster.yaml").read_text())
    for machine in document["machines"]:
        machine.update(gpus=3, cores=16, nic_gbps=100)
    (files / "cluster.yaml").write_text(yaml.safe_dump(document))
    job = make_job({"graph": "synthetic-arxiv", "hidden": 8})
    of_job = {"job": deciding(job.model_dump(mode="json")), "cluster": SET_UP}
    found = {}
    for device, changes in (("cpu", {}), ("cuda", {"on_cuda": 0.004})):
        profile = profile_of(2, 3, **of_job, **changes, seconds={"step": 0.05})
        write_profile(profile, files / "profile.json")
        code, out, err = planned(monkeypatch, capsys, files, "--device", "cuda", "--flows", "fair", "--json", "--force")
        assert code == 0, err
        found[device] = json.loads(out)
        plan = json.loads((files / "plan.json").read_text())
        assert plan["execution"]["device"] == "cuda" and plan["execution"]["mode"] == "mini-batch"
    assert found["cpu"]["predicted"]["iteration_s"] > 0.049 > 0.02 > found["cuda"]["predicted"]["iteration_s"]
    said = [any("measured on processors" in note for note in each["notes"]) for each in found.values()]
    assert said == [True, False]
    # Processors that were not measured are not guessed.
    profile.operators = [each for each in profile.operators if each.name != "step" or each.device == "cuda"]
    write_profile(profile, files / "profile.json")
    code, _, err = planned(monkeypatch, capsys, files, "--device", "cpu", "--force")
    assert code == 2 and "operator step measured only on cuda" in " ".join(err.split())


def test_a_profile_of_an_older_release_is_one_sentence(monkeypatch, capsys, files):
    (files / "profile.json").write_text(json.dumps({"format": "penstock-profile", "version": 1}))
    code, _, err = planned(monkeypatch, capsys, files)
    assert code == 2 and "format version 1" in err and "measure again" in " ".join(err.split())


def test_more_cores_than_this_host_has_are_said(monkeypatch, capsys, files):
    monkeypatch.setenv("PENSTOCK_THREADS", "2")
    code, out, _ = planned(monkeypatch, capsys, files, "--json")
    assert code == 0 and not any("this host" in note for note in json.loads(out)["notes"])
    document = yaml.safe_load((files / "cluster.yaml").read_text())
    for machine in document["machines"]:
        del machine["cores"]
    (files / "cluster.yaml").write_text(yaml.safe_dump(document))
    code, out, _ = planned(monkeypatch, capsys, files, "--json", "--force")
    said = [note for note in json.loads(out)["notes"] if "this host, which has 2 cores" in note]
    assert code == 0 and len(said) == 1 and "planned with 5" in said[0]
    assert said[0] in json.loads((files / "plan.json").read_text())["notes"]
    monkeypatch.setenv("PENSTOCK_THREADS", "64")
    code, out, _ = planned(monkeypatch, capsys, files, "--json", "--force")
    assert not any("this host" in note for note in json.loads(out)["notes"])


def test_a_profile_of_another_size_is_scaled_and_that_is_said(monkeypatch, capsys, files):
    code, out, _ = planned(monkeypatch, capsys, files, "--json")
    assert code == 0 and json.loads(out)["scaled_from"] is None
    document = yaml.safe_load((files / "cluster.yaml").read_text())
    document["machines"] += [{"name": f"more{n}", "workers": 1, "cores": 8, "nic_gbps": 1} for n in range(2)]
    (files / "cluster.yaml").write_text(yaml.safe_dump(document))
    code, out, _ = planned(monkeypatch, capsys, files, "--json", "--force")
    found = json.loads(out)
    assert code == 0 and found["scaled_from"] == {"parts": 2, "workers": 3}
    assert any("scaled to 4 parts and 5 workers" in note for note in found["notes"])
    plan = json.loads((files / "plan.json").read_text())
    assert sum(task["kind"] == "worker" for task in plan["tasks"]) == 5
    assert plan["scaled_from"] == {"parts": 2, "workers": 3}


def test_what_cannot_be_scaled_is_refused(monkeypatch, capsys, files):
    job = make_job({"graph": "synthetic-arxiv", "hidden": 8, "sampler": "ladies"})
    profile = profile_of(1, 1, job=deciding(job.model_dump(mode="json")), cluster=SET_UP)
    write_profile(profile, files / "profile.json")
    code, _, err = planned(monkeypatch, capsys, files, "--sampler", "ladies")
    assert code == 2 and "sampler ladies are drawn as a whole: measure with" in " ".join(err.split())
    assert not (files / "plan.json").exists()


def test_racks_keep_their_names(monkeypatch, capsys, files):
    document = yaml.safe_load((files / "cluster.yaml").read_text())
    document["machines"][0]["rack"] = "north"
    (files / "cluster.yaml").write_text(yaml.safe_dump(document))
    code, _, err = planned(monkeypatch, capsys, files)
    assert code == 2 and "Machine fast has no rack" in " ".join(err.split())
    document["machines"][1]["rack"] = "south"
    (files / "cluster.yaml").write_text(yaml.safe_dump(document | {"oversubscription": 4}))
    assert planned(monkeypatch, capsys, files)[0] == 0
    links = json.loads((files / "plan.json").read_text())["predicted"]["link_bytes"]
    assert {"rack north up", "rack south down"} <= set(links)


def test_a_plan_is_replayed_as_it_was_predicted(monkeypatch, capsys, files):
    code, _, err = planned(
        monkeypatch, capsys, files, "--timeline", files / "plan.html", "--timeline", files / "t.json"
    )
    assert code == 0, err
    plan = json.loads((files / "plan.json").read_text())
    # The page says of an iteration what the table does.
    chosen = next(
        row for row in plan["compared"] if (row["placement"], row["flows"]) == (plan["placement"], plan["flows"])
    )
    page = (files / "plan.html").read_text().replace("\u00a0", " ")
    assert f"<b>{chosen['iteration_s'] * 1e3:.4g}<small>ms</small></b>" in page
    assert f"<dt>no schedule takes less than</dt><dd>{chosen['lower_bound_s'] * 1e3:.4g} ms</dd>" in page
    assert f"<dt>gap to that</dt><dd>{percent(chosen['gap'])}</dd>" in page
    assert "<dt>drawn: the first</dt><dd>10 iterations, " in page
    assert {event["ph"] for event in json.loads((files / "t.json").read_text())["traceEvents"]} >= {"X", "C"}
    found = answer(monkeypatch, capsys, "simulate", files / "plan.json")
    assert found["policy"] == plan["flows"]
    assert found["iteration_s"] == plan["predicted"]["iteration_s"] == found["predicted"]["iteration_s"]
    # Another policy is simulated with the same tasks in the same places.
    other = next(
        row for row in plan["compared"] if row["flows"] != plan["flows"] and row["placement"] == plan["placement"]
    )
    assert answer(monkeypatch, capsys, "simulate", files / "plan.json", "--policy", other["flows"])["iteration_s"] > 0
    code, out, _ = command(monkeypatch, capsys, "simulate", files / "plan.json", "--iterations", "4")
    assert code == 0 and "4 iterations in" in out and "In the long run, an iteration takes" in out


def test_a_plan_on_other_links(monkeypatch, capsys, files):
    assert planned(monkeypatch, capsys, files)[0] == 0
    rows = answer(monkeypatch, capsys, "simulate", files / "plan.json", "--sweep", "machines[slow].nic_gbps=0.1,10")
    assert [row["point"] for row in rows["sweep"]] == [{"machines[slow].nic_gbps": value} for value in (0.1, 10)]
    plan = json.loads((files / "plan.json").read_text())
    assert rows["sweep"][0]["iteration_s"] == plan["predicted"]["iteration_s"]
    assert rows["sweep"][1]["iteration_s"] < rows["sweep"][0]["iteration_s"]
    refused = functools.partial(refusal, monkeypatch, capsys)
    assert "No field is called 'workers'" in refused("simulate", files / "plan.json", "--sweep", "workers=1,2")
    (files / "old.json").write_text(json.dumps({**plan, "version": 1}))
    assert "old.json has format version 1" in refused("simulate", files / "old.json")
    (files / "other.json").write_text(json.dumps({**plan, "execution": {"mode": "mini-bath"}}))
    assert "No execution mode is called 'mini-bath': did you mean" in refused("simulate", files / "other.json")


def test_plans_for_every_value_of_a_field(monkeypatch, capsys, files):
    code, out, err = planned(monkeypatch, capsys, files, "--sweep", "nic_gbps=0.1,10", "--flows", "fair", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["fields"] == ["nic_gbps"] and not (files / "plan.json").exists()
    slow, fast = found["sweep"]
    assert slow["point"] == {"nic_gbps": 0.1} and slow["iteration_s"] > fast["iteration_s"]
    assert {"placement", "flows", "epoch_s", "lower_bound_s", "gap", "slowest_link", "bottleneck"} <= set(slow)


def test_a_value_that_cannot_be_planned_does_not_hide_the_others(monkeypatch, capsys, files):
    words = ["--sweep", "samplers=0,16", "--flows", "fair", "--chart", files / "sweep.html"]
    code, out, err = planned(monkeypatch, capsys, files, *words, "--json")
    assert code == 0, err
    can, cannot = json.loads(out)["sweep"]
    assert can["error"] is None and can["iteration_s"] > 0
    assert cannot["point"] == {"samplers": 16} and "cores" in cannot["error"] and "iteration_s" not in cannot
    code, out, _ = planned(monkeypatch, capsys, files, *words)
    assert code == 0 and f"samplers=16: {cannot['error']}" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sweep", "nic_gpbs=1,2"], "did you mean 'nic_gbps'?"),
        (["--sweep", "nic_gbps=fast,2"], "With nic_gbps=fast the cluster is not valid"),
        (["--sweep", "batch_size=7"], "is the profile of another job"),
        (["--sweep", "speed=1,2", "--timeline", "t.html"], "--sweep and --timeline cannot be combined"),
        (["--chart", "c.html"], "--chart draws a sweep"),
        (["--sweep", "speed=1,2", "--chart", "c.png"], "c.png is not a page"),
        (["--timeline", "t.png"], "neither a page nor a trace"),
    ],
)
def test_sweeps_and_timelines_that_cannot_be(monkeypatch, capsys, files, words, said):
    code, out, err = planned(monkeypatch, capsys, files, *words, "--json")
    assert (code, out) == (2, "")
    assert said in json.loads(err)["error"]
    assert not (files / "plan.json").exists()


def test_the_commands_of_the_page_run(monkeypatch, capsys, files):
    """Those of its sections on replays, sweeps and comparisons."""
    monkeypatch.chdir(files)
    (files / "job.yaml").write_text(yaml.safe_dump({"graph": "synthetic-arxiv", "hidden": 8}))
    result = {"epochs": 2, "epoch_seconds": [3.0, 2.0], "batches": 20}
    for name in ("planned", "one", "two", "three"):
        (files / "runs" / name).mkdir(parents=True)
        (files / "runs" / name / "run.json").write_text(json.dumps({"format": "penstock-run", "result": result}))
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text()
    sections = page[page.index("## Replay") : page.index("## How to add")]
    lines = "".join(re.findall(r"^```text\n(.*?)^```", sections, re.S | re.M)).splitlines()
    assert len(lines) == 8
    for line in lines:
        _, *words = shlex.split(line, comments=True)
        fewer = ["--steps", "50", "--flows", "fair"] if words[0] == "plan" else []
        code, _, err = command(monkeypatch, capsys, *words, *fewer)
        assert code == 0, f"{line}\n{err}"
        if (files / "plan.json").exists():
            for name in ("plan-10g.json", "plan-25g.json"):
                shutil.copy(files / "plan.json", files / name)
    assert (files / "plan.html").exists() and (files / "replay.html").exists() and (files / "sweep.html").exists()


def change(what, gain, feature_bytes=None):
    return Change(what=what, iteration_s=0.02, gain=gain, feature_bytes=feature_bytes)


def test_changes_that_bring_nothing_are_one_line(capsys):
    idle = [change(f"one more machine like m{number}", 0.0) for number in range(12)]
    _print_changes(idle)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("  Nothing of what was tried changes the time: one more machine like m0, ")
    assert "0 %" not in line and line.endswith("one more machine like m11.")
    _print_changes([change("wire_type: int8", 0.45, 1e6), change("a replica", -0.1), *idle])
    useful, worse, rest = capsys.readouterr().out.splitlines()
    assert "wire_type: int8: 20 ms" in useful and "(-45 %), 1M of features" in useful
    assert "(+10 %)" in worse and rest.startswith("  Nothing else of what was tried")
    _print_changes([])
    assert capsys.readouterr().out == ""


def test_machines_of_a_cluster_can_be_like_one_that_was_measured(monkeypatch, capsys, files):
    """Bytes stay, a step takes what its GPU is predicted to take, and a slower GPU takes longer."""
    machine = ["--machine", "h200", "--force", "--flows", "fair"]
    code, _, err = planned(monkeypatch, capsys, files, *machine)
    assert code == 2 and "set `gpus` of the cluster file's machines" in " ".join(err.split())
    document = yaml.safe_load((files / "cluster.yaml").read_text())
    for each in document["machines"]:
        each.update(gpus=3, cores=16, nic_gbps=100)
    (files / "cluster.yaml").write_text(yaml.safe_dump(document))
    found = {}
    for name in ("h200", "t4"):
        code, out, err = planned(monkeypatch, capsys, files, "--machine", name, *machine[2:], "--json")
        assert code == 0, err
        found[name] = json.loads(out)
        assert any(f"like {name}" in note and "a step takes" in note for note in found[name]["notes"])
        plan = json.loads((files / "plan.json").read_text())
        measured = {(each["name"], each["device"]) for each in plan["profile"]["operators"]}
        assert ("step", "cuda") in measured and ("step", "cpu") not in measured
    assert found["t4"]["predicted"]["iteration_s"] >= found["h200"]["predicted"]["iteration_s"]
    code, _, err = planned(monkeypatch, capsys, files, "--machine", "arm-host", *machine[2:])
    assert code == 2 and "it has no GPU" in " ".join(err.split())
    swept = [*machine[:2], "--flows", "fair", "--sweep", "nic_gbps=1,10"]
    rows = answer(monkeypatch, capsys, "plan", *JOB, "--cluster", files / "cluster.yaml", "--profile",
                  files / "profile.json", "--steps", "50", *swept)["sweep"]  # fmt: skip
    assert rows[0]["iteration_s"] >= rows[1]["iteration_s"]


def test_a_plan_with_a_transport_and_tenants(monkeypatch, capsys, files):
    alone = json.loads(planned(monkeypatch, capsys, files, "--json")[1])
    assert alone["network"] == []
    cluster = yaml.safe_load((files / "cluster.yaml").read_text())
    cluster["transport"] = {"kind": "tcp", "hop_us": 300}
    (files / "cluster.yaml").write_text(yaml.safe_dump(cluster))
    profile = json.loads((files / "profile.json").read_text())
    (files / "profile.json").write_text(json.dumps(profile | {"links": {"slow": 5e6, "fast": 1.2e8}}))
    found = json.loads(planned(monkeypatch, capsys, files, "--force", "--json")[1])
    assert [each["what"] for each in found["network"]] == ["links as a fluid", "without other tenants"]
    assert found["predicted"]["iteration_s"] > alone["predicted"]["iteration_s"]
    assert any(note.startswith("The link of slow carried at most 0.04 of its 0.1 Gbit/s") for note in found["notes"])
    plan = json.loads((files / "plan.json").read_text())
    assert [each["background"] for each in plan["cluster"]["machines"]] == [{"cores": 0, "gbps": 0.06}, None]
    replayed = answer(monkeypatch, capsys, "simulate", files / "plan.json")
    assert replayed["iteration_s"] == pytest.approx(found["predicted"]["iteration_s"])
    assert replayed["transport"]["fluid_makespan_s"] < replayed["makespan_s"]
    printed = planned(monkeypatch, capsys, files, "--force")[1]
    assert "links as a fluid: " in printed and "without other tenants: " in printed
