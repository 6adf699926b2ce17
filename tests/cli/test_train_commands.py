"""`penstock train`, `evaluate`, `predict`, `embed` and `report` as a script and a person meet them."""

import functools
import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from in_process import answer, command, refusal
from penstock.train.job import JobFields
from training_graphs import community_graph, facts_of, lines_of

STAGES = ["seeds", "sample", "gather", "transfer", "compute"]
FEW = ["--fanouts", "4,3", "--hidden", "16", "--batch-size", "16", "--epochs", "3", "--threads", "1"]


@pytest.fixture
def answered(monkeypatch, capsys):
    return functools.partial(answer, monkeypatch, capsys)


@pytest.fixture
def refused(monkeypatch, capsys):
    return functools.partial(refusal, monkeypatch, capsys)


@pytest.fixture
def shown(monkeypatch, capsys):
    def run(*arguments):
        code, out, err = command(monkeypatch, capsys, *arguments)
        assert code == 0, err
        return out, err

    return run


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands") / "graph"
    community_graph(ids=np.arange(200) * 2 + 5, categories={"y": ["a", "b", "c", "d"]}).save(folder)
    return folder


@pytest.fixture(scope="module")
def run(graph):
    """A run made by the command itself."""
    from _pytest.monkeypatch import MonkeyPatch

    from penstock.cli.main import app
    from penstock.cli.main import run as main

    path = graph.parent / "run"
    with MonkeyPatch.context() as patch:
        arguments = ["penstock", "train", "--graph", graph, "--run", path, *FEW, "--sample-threads", "2"]
        patch.setattr("sys.argv", [str(argument) for argument in arguments])
        app.registered_commands.clear()
        assert main() == 0
    return path


def test_what_train_answers(graph, tmp_path, answered):
    found = answered("train", "--graph", graph, "--run", tmp_path / "run", *FEW)
    assert found["run"] == str(tmp_path / "run")
    assert found["epochs"] == 3
    assert len(found["epoch_seconds"]) == 3
    assert 0 < sum(found["epoch_seconds"]) <= found["seconds"] + 0.01
    assert found["seeds_per_second"] == pytest.approx(300 / sum(found["epoch_seconds"]), rel=0.01)
    assert found["train_loss"] > 0
    for split in ("val", "test"):
        assert set(found[split]) == {"accuracy", "macro-f1", "micro-f1"}
        assert all(0 <= value <= 1 for value in found[split].values())
    assert found["limiting_stage"] in STAGES
    assert list(found["stages"]) == STAGES
    assert all(stage["busy_s"] >= 0 and stage["wait_s"] >= 0 for stage in found["stages"].values())
    assert found["peak_rss_mb"] > 50
    assert found["state"] == "finished"
    assert found["report"] == str(tmp_path / "run" / "report.html")
    assert len(found["notes"]) == 1 and "ended after 21 steps (3 epochs of 7 batches)" in found["notes"][0]
    again = answered("train", "--resume", tmp_path / "run")
    assert {name: again[name] for name in ("epochs", "train_loss", "val", "test", "seconds", "epoch_seconds")} == {
        name: found[name] for name in ("epochs", "train_loss", "val", "test", "seconds", "epoch_seconds")
    }
    longer = answered("train", "--resume", tmp_path / "run", "--epochs", "4")
    assert longer["epochs"] == 4
    assert longer["notes"][0] == "Resuming from step-000000000021.ckpt: epoch 4, batch 1."
    assert len(longer["notes"]) == 2 and "ended after 28 steps" in longer["notes"][1]


def test_a_job_file_and_flags_that_replace_its_fields(graph, tmp_path, answered):
    job = {"graph": str(graph), "run": str(tmp_path / "run"), "fanouts": [4, 3], "hidden": 16, "epochs": 2}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    found = answered(
        "train", tmp_path / "job.yaml", "--epochs", "1", "--no-filtered", "--optimiser-options", "{eps: 1.0e-7}"
    )
    assert found["epochs"] == 1
    written = yaml.safe_load((tmp_path / "run" / "job.yaml").read_text())
    assert (written["epochs"], written["hidden"], written["filtered"]) == (1, 16, False)
    assert written["optimiser_options"] == {"eps": 1e-7}
    assert set(written) == set(JobFields.model_fields)


def test_the_run_folder_by_default(graph, tmp_path, answered, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        found = answered("train", "--graph", graph, *FEW, "--epochs", "1", "--model", "gcn")
        assert found["run"] == f"runs/communities-gcn-{number}"
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["communities-gcn-1", "communities-gcn-2"]


def test_what_a_person_sees(graph, tmp_path, shown):
    out, err = shown("train", "--graph", graph, "--run", tmp_path / "run", *FEW)
    assert out.splitlines()[0] == f"finished: {tmp_path / 'run'}"
    assert "accuracy" in out
    assert "limits; peak" in out
    assert out.splitlines()[-1] == f"Report: {tmp_path / 'run' / 'report.html'}"
    assert re.search(r"epoch 1/3: loss \d\.\d+, val accuracy \d\.\d+, [\d,]+ seeds/s, \w+ limits, [\d,]+ MB", err)


def test_help_names_every_field(shown, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERMINAL_WIDTH", "300")
    text, _ = shown("train", "--help-all")
    for name in JobFields.model_fields:
        assert ("--from" if name == "from_run" else f"--{name.replace('_', '-')}") in text
    assert "Example: penstock train" in text


@pytest.mark.parametrize("name", ["evaluate", "predict", "embed", "report"])
def test_help_has_an_example(name, shown):
    assert f"Example: penstock {name}" in shown(name, "--help")[0]


def test_the_documents_of_a_run(run):
    assert {"job.yaml", "run.json", "metrics.jsonl", "events.jsonl", "report.html", "checkpoints"} <= {
        path.name for path in run.iterdir()
    }
    facts = facts_of(run)
    assert (facts["format"], facts["version"], facts["state"]) == ("penstock-run", 1, "finished")
    assert facts["graph"]["nodes"] == {"node": 200}
    assert facts["metric"] == {"name": "accuracy", "better": "higher"}
    assert facts["task"] == "node-classification"
    assert facts["parameters"] > 0
    assert facts["machine"]["cores"] >= 1
    assert facts["result"]["epochs"] == 3
    records = lines_of(run)
    epochs = [record for record in records if record["kind"] == "epoch"]
    assert [record["epoch"] for record in epochs] == [0, 1, 2]
    assert [record["step"] for record in epochs] == [7, 14, 21]
    for record in epochs:
        assert set(record["stages"]) == set(STAGES)
        assert {"loss", "lr", "seconds", "seeds_per_second", "rss_mb", "time", "val"} <= set(record)
    steps = [record["step"] for record in records if record["kind"] == "step"]
    assert steps == list(range(1, 22))
    times = [record["time"] for record in records]
    assert times == sorted(times)


def test_the_trace_opens_in_perfetto(run):
    text = (run / "events.jsonl").read_text()
    events = json.loads(text.rstrip().removesuffix(",") + "]")
    work = [event for event in events if event["ph"] == "X"]
    for stage in STAGES:
        mine = [event for event in work if event["name"] == stage]
        assert sorted((e["args"]["epoch"], e["args"]["batch"]) for e in mine) == [
            (e, b) for e in range(3) for b in range(7)
        ]
        assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in mine)
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert set(names.values()) == {"seeds 0", "sample 0", "sample 1", "gather 0", "transfer 0", "compute 0"}
    assert {event["tid"] for event in work} <= set(names)
    memory = [event for event in events if event["ph"] == "C"]
    assert len(memory) == 3
    assert all(event["args"]["rss_mb"] > 0 for event in memory)


def test_evaluate(run, answered, shown, refused):
    found = answered("evaluate", run)
    facts = facts_of(run)["result"]
    assert found["val"] == facts["val"]
    assert found["test"] == facts["test"]
    assert {"seconds", "peak_rss_mb"} <= set(found)
    assert set(answered("evaluate", run, "--split", "train")) == {"train", "seconds", "peak_rss_mb"}
    assert "accuracy" in shown("evaluate", run, "--split", "test")[0]
    assert "no split 'tset'" in refused("evaluate", run, "--split", "tset")
    assert refused("evaluate", run / "checkpoints").code == "wrong-file"


def test_predict_and_embed(run, tmp_path, answered, shown, refused):
    out = tmp_path / "p.parquet"
    assert answered("predict", run, "--out", out).items() >= {"path": str(out), "rows": 200}.items()
    table = pq.read_table(out)
    assert table["id"].to_pylist() == list(range(5, 405, 2))
    assert set(table["prediction"].to_pylist()) <= {"a", "b", "c", "d"}
    assert "exists already: add --force" in refused("predict", run, "--out", out)
    assert answered("predict", run, "--out", out, "--split", "val", "--force")["rows"] == 50
    assert "did you mean 'val'?" in refused("predict", run, "--out", tmp_path / "q.parquet", "--split", "vall")
    assert answered("embed", run, "--out", tmp_path / "e.parquet")["rows"] == 200
    assert len(pq.read_table(tmp_path / "e.parquet")["embedding"][0]) == 16
    assert "200 rows written to" in shown("embed", run, "--out", tmp_path / "e.parquet", "--force")[0]
    assert "no node type" in refused("embed", run, "--out", tmp_path / "f.parquet", "--type", "user")
    assert "--out" in command_error(refused, "predict", run)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.parquet", "p.parquet"]


def test_the_extension_says_the_format(run, tmp_path, answered, refused):
    """A file is what it is called: CSV in .csv, and no file of a format that is not known."""
    for name in ("predict", "embed"):
        assert "has the extension '.xls'" in refused(name, run, "--out", tmp_path / "t.xls")
        for suffix in ("csv", "npz", "jsonl"):
            assert answered(name, run, "--out", tmp_path / f"{name}.{suffix}")["rows"] == 200
    lines = (tmp_path / "predict.csv").read_text().splitlines()
    assert lines[0] == '"id","prediction","probability"' and len(lines) == 201
    assert (tmp_path / "embed.csv").read_text().startswith('"id","embedding_0","embedding_1"')
    with np.load(tmp_path / "embed.npz") as found:
        assert found["embedding"].shape == (200, 16)
    first = (tmp_path / "predict.jsonl").read_text().splitlines()[0]
    assert set(json.loads(first)) == {"id", "prediction", "probability"}
    assert not (tmp_path / "t.xls").exists()


def command_error(refused, *arguments):
    """Usage errors are Typer's, which ends no sentence with a point."""
    try:
        return refused(*arguments)
    except AssertionError as error:
        return str(error)


def test_another_graph_of_the_same_shape(run, tmp_path, answered):
    community_graph(count=90, seed=5, categories={"y": ["a", "b", "c", "d"]}).save(tmp_path / "other")
    assert answered("predict", run, "--out", tmp_path / "p.parquet", "--graph", tmp_path / "other")["rows"] == 90


def test_report(run, answered, shown, refused, tmp_path):
    (run / "report.html").unlink()
    found = answered("report", run)
    assert found == {"path": str(run / "report.html"), "bytes": (run / "report.html").stat().st_size}
    assert "report.html" in shown("report", run)[0]
    assert refused("report", tmp_path)


def test_no_split_to_evaluate(run, refused):
    assert refused("evaluate", run, "--split", "").startswith("There is no split to evaluate: name some of")
