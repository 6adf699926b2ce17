"""`penstock compare`: plans, runs and simulations side by side."""

import functools
import json

import pytest

from in_process import answer, command, refusal

RESULT = {"run": "r", "epochs": 3, "epoch_seconds": [9.0, 2.0, 2.4], "batches": 20, "seconds": 14.0, "train_loss": 0.0,
          "val": {"accuracy": 0.8}, "test": {"accuracy": 0.75}, "peak_rss_mb": 500.0}  # fmt: skip
PLAN = {"format": "penstock-plan", "predicted": {"iteration_s": 0.1, "epoch_s": 2.0, "lower_bound_s": 0.09,
        "link_bytes": {"m0 out": 10.0, "m1 out": 30.0}}}  # fmt: skip
SIMULATION = {"makespan_s": 4.0, "lower_bound_s": 3.0, "step_s": 0.125, "links": {"m0 out": {"utilisation": 0.5}},
              "coflows": {"count": 1, "mean_cct_s": 0.5, "p95_cct_s": 0.5}}  # fmt: skip
TRACE = {"makespan_s": 4.0, "step_s": None, "links": {}, "coflows": {}}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps({"format": "penstock-run", "result": RESULT}))
    other = {**RESULT, "epoch_seconds": [4.4], "train_loss": 0.5, "peak_rss_mb": 250.0}
    for name, document in (("plan", PLAN), ("simulation", SIMULATION), ("trace", TRACE), ("other", other)):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "else.json").write_text('{"a": 1}')


def by_name(found):
    return {row["name"]: row for row in found["quantities"]}


def test_two_runs(files, monkeypatch, capsys):
    found = answer(monkeypatch, capsys, "compare", "run", "other.json")
    assert found["compared"] == [{"name": "run", "kind": "run"}, {"name": "other.json", "kind": "run"}]
    rows = by_name(found)
    # The first epoch compiles kernels: where there are others it does not count.
    assert rows["epoch_s"]["values"] == [2.2, 4.4]
    assert rows["epoch_s"]["differences"] == [0.0, 2.2] and rows["epoch_s"]["ratios"] == [1.0, 2.0]
    assert rows["iteration_s"]["values"] == pytest.approx([0.11, 0.22])
    assert rows["train_loss"]["ratios"] == [None, None] and rows["train_loss"]["differences"] == [0.0, 0.5]
    assert rows["test.accuracy"]["values"] == [0.75, 0.75]
    code, out, _ = command(monkeypatch, capsys, "compare", "run", "other.json")
    words = " ".join(out.split())
    assert code == 0 and "epoch_s 2.2 s 4.4 s +100.0 %" in words
    assert "peak_rss_mb 500 MiB 250 MiB -50.0 %" in words and "train_loss 0 0.5 +0.5" in words


def test_what_a_plan_predicts_beside_what_happened(files, monkeypatch, capsys):
    rows = by_name(answer(monkeypatch, capsys, "compare", "plan.json", "run"))
    assert set(rows) == {"iteration_s", "epoch_s"}
    assert rows["epoch_s"]["values"] == [2.0, 2.2]


def test_three_at_once_share_what_all_have(files, monkeypatch, capsys):
    rows = by_name(answer(monkeypatch, capsys, "compare", "plan.json", "simulation.json", "run"))
    assert {name: row["values"] for name, row in rows.items()} == {"iteration_s": pytest.approx([0.1, 0.125, 0.11])}
    code, out, _ = command(monkeypatch, capsys, "compare", "plan.json", "simulation.json", "run")
    assert code == 0 and "+25.0 % +10.0 %" in " ".join(out.split())


def test_bounds_of_an_iteration_and_of_a_makespan_are_not_compared(files, monkeypatch, capsys):
    assert "lower_bound_s" not in by_name(answer(monkeypatch, capsys, "compare", "plan.json", "simulation.json"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["trace.json", "run"], "no quantity in common: trace.json (a simulation), run (a run)"),
        (["plan.json"], "Only plan.json is given"),
        (["plan.json", "none.json"], "none.json does not exist"),
        (["plan.json", "list.json"], "list.json is not one JSON object"),
        (["plan.json", "else.json"], "else.json cannot be compared"),
        (["plan.json", "."], ". is a folder without run.json"),
    ],
)
def test_what_cannot_be_compared(files, monkeypatch, capsys, given, said):
    refused = functools.partial(refusal, monkeypatch, capsys)
    assert said in refused("compare", *given)
