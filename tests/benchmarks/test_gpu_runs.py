"""The plain arithmetic of the GPU benchmarks: what is run, and what is made of its answer."""

import importlib.util
import sys
from pathlib import Path

import pytest

from penstock.graph.generate import make_graph, recipe_named


@pytest.fixture(scope="module")
def runs():
    spec = importlib.util.spec_from_file_location("gpu_runs", Path(__file__).parents[2] / "benchmarks" / "gpu_runs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_fields_become_flags(runs):
    fields = {"batch_size": 8, "fanouts": [15, 10], "replace": True, "residual": False, "compute": None}
    assert runs.flags(fields) == ["--batch-size", "8", "--fanouts", "15,10", "--replace", "--no-residual"]
    assert runs.flags({"placement": {"features": "pinned"}}) == ["--placement", '{"features": "pinned"}']


def test_fields_can_be_given_as_words(runs):
    assert runs.given_fields(["lr=0.1", "replace=yes"]) == {"lr": "0.1", "replace": True}
    with pytest.raises(SystemExit, match="name=value"):
        runs.given_fields(["lr"])


def test_the_last_object_is_the_answer(runs):
    assert runs.last_object('{"a": 1}\nsome words\n{"b": 2}\n[3]\n') == {"b": 2}
    assert runs.last_object("nothing\n") is None


def test_the_first_epoch_is_not_counted(runs):
    found = runs.speed({"epoch_seconds": [9.0, 2.0, 1.0, 4.0]}, 100)
    assert found["first_epoch_s"] == 9.0
    assert (found["epoch_s_min"], found["epoch_s_median"], found["epoch_s_max"]) == (1.0, 2.0, 4.0)
    assert found["batches_per_second"] == 50.0
    assert runs.speed({"epoch_seconds": [4.0]}, 100)["batches_per_second"] == 25.0
    assert runs.speed({"error": "no"}, 100) == {"error": "no"}


def test_differences_are_those_of_pairs(runs):
    found = runs.compared([80.0, 90.0, 70.0], [81.0, 90.0, 72.0])
    assert found["difference"] == 1.0
    assert found["standard_error"] == pytest.approx((1.0 / 3.0) ** 0.5, abs=1e-3)
    assert found["in_errors"] == pytest.approx(3.0**0.5, abs=0.01)
    assert runs.compared([80.0, 81.0], [80.0, 81.0])["in_errors"] == 0.0
    assert runs.compared([80.0, 81.0], [81.0, 82.0])["in_errors"] is None


def test_a_process_answers_fails_or_is_ended(runs):
    def python(code):
        return [sys.executable, "-c", code]

    assert runs.in_a_process(python("print('{\"a\": 1}')"), 60)["a"] == 1
    assert "3" in runs.in_a_process(python("import sys; sys.exit(3)"), 60)["error"]
    assert "0.1" in runs.in_a_process(python("import time; time.sleep(600)"), 0.1)["error"]


def test_room_is_what_the_folder_takes(runs, tmp_path):
    recipe = recipe_named("synthetic-products").scaled(0.005)
    make_graph(recipe, tmp_path / "g")
    taken = sum(file.stat().st_size for file in (tmp_path / "g").rglob("*"))
    assert taken < runs.folder_bytes(recipe) < 2 * taken
