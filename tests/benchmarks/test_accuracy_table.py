"""The table of benchmarks/accuracy.py: what is run, what is kept when it is cut off, and what the rows say."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import accuracy
from penstock.train.recipes import Recipe, recipe_for


def small_archive(folder):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    np.savez(
        folder / "tiny.npz",
        num_nodes=60,
        indptr=np.arange(0, 121, 2),
        indices=np.concatenate([[(i - 1) % 60, (i + 1) % 60] for i in range(60)]),
        features=np.eye(2, dtype=np.float32)[y],
        labels=y,
    )


def recipe(**more):
    job = {"graph": "tiny.npz", "model": "gcn", "hidden": 4, "sampler": "whole", "layers": 1, "epochs": 2, "threads": 1}
    return Recipe(set="tiny", model="gcn", metric="accuracy", published=50.0, source="nobody", job={**job, **more})


def test_runs_are_measured_and_errors_are_kept(tmp_path):
    small_archive(tmp_path)
    found = accuracy.measured(accuracy.Planned(recipe(), 3, tmp_path, "test", {}))
    assert (found["set"], found["model"], found["seed"]) == ("tiny", "gcn", 3)
    assert found["score"] == found["metrics"]["accuracy"] and found["seconds"] > 0
    judged = accuracy.measured(accuracy.Planned(recipe(), 3, tmp_path, "val", {"lr": "0.1"}))
    assert 0 <= judged["score"] <= 100
    failed = accuracy.measured(accuracy.Planned(recipe(heads=0), 0, tmp_path, "test", {}))
    assert "heads" in failed["error"] and "score" not in failed


def test_rows_are_means_over_the_seeds_that_ended():
    one = recipe()
    runs = [{"set": "tiny", "model": "gcn", "seed": seed, "score": 50.0 + seed, "seconds": 2.0} for seed in (1, 0)]
    runs += [{"set": "tiny", "model": "gcn", "seed": 2, "error": "no"}]
    (row,) = accuracy.rows_of([one], runs)
    assert (row["mean"], row["std"], row["seeds"], row["difference"]) == (50.5, 0.71, 2, 0.5)
    assert row["scores"] == [50.0, 51.0]
    (empty,) = accuracy.rows_of([one], [])
    assert empty["mean"] is None and empty["difference"] is None
    assert accuracy.table([row, empty]).row_count == 2


def test_recipes_are_chosen_by_set_and_model():
    assert [each.name for each in accuracy.chosen("cora:gat,aifb", "cpu")] == ["aifb:rgcn", "cora:gat"]
    assert recipe_for("fb15k-237", "rotate") not in accuracy.chosen("", "cpu")
    assert recipe_for("fb15k-237", "rotate") in accuracy.chosen("", "cuda")
    with pytest.raises(SystemExit, match="corra"):
        accuracy.chosen("corra", "cpu")


def test_what_a_file_holds_is_not_run_again(tmp_path, monkeypatch, capsys):
    small_archive(tmp_path)
    monkeypatch.setattr(accuracy, "shipped_recipes", lambda: (recipe(),))
    out = tmp_path / "out.json"
    for seeds, ran in ((1, [0]), (3, [1, 2]), (3, [])):
        monkeypatch.setattr(
            sys, "argv", ["accuracy.py", "--data", str(tmp_path), "--seeds", str(seeds), "--out", str(out), "--json"]
        )
        accuracy.main()
        said = [json.loads(line)["seed"] for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
        assert said == ran
    kept = json.loads(out.read_text())
    assert sorted(run["seed"] for run in kept["runs"]) == [0, 1, 2] and kept["table"][0]["seeds"] == 3


def test_after_its_time_nothing_is_started(tmp_path):
    planned = [accuracy.Planned(recipe(), seed, tmp_path, "test", {}) for seed in range(3)]
    assert list(accuracy.finished(planned, 1, 0.0)) == []
