"""`penstock recipes`: every recipe is a job that reads, and docs/recipes.md is made from them."""

from pathlib import Path

import pytest
import yaml

from in_process import answer, command, refusal
from penstock.cli.doc_pages import recipes_page
from penstock.train.job import make_job, read_job
from penstock.train.recipes import job_text, recipe_for, shipped_recipes

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == recipes_page(), (
        "run `python -m penstock.cli.doc_pages recipes > docs/recipes.md`"
    )


@pytest.mark.parametrize("recipe", shipped_recipes(), ids=lambda recipe: recipe.name)
def test_every_recipe_is_a_job_for_its_figure(recipe):
    job = make_job(recipe.fields(3))
    assert job.graph == (recipe.prepared_name if recipe.prepare else f"{recipe.set}.npz") and job.seed == 3
    said = f"penstock data prepare {recipe.set}.npz --"
    assert (said in job_text(recipe, 3)) == bool(recipe.prepare) == (job.graph != recipe.job["graph"])
    assert job.model == recipe.model or job.scorer == recipe.model
    assert job.metric == recipe.metric or (job.metric == "auto" and recipe.metric in ("accuracy", "mrr"))
    assert job.split_number == (3 if recipe.split_by_seed else 0)
    assert (recipe.published is None) == (recipe.source is None)
    assert yaml.safe_load(job_text(recipe, 3)) == recipe.fields(3)


def test_there_are_twenty_pairs_with_published_figures():
    published = [recipe for recipe in shipped_recipes() if recipe.published is not None]
    assert len({recipe.name for recipe in shipped_recipes()}) == len(shipped_recipes())
    assert len([recipe for recipe in published if "scorer" not in recipe.job]) >= 20
    assert {recipe.model for recipe in published if recipe.set == "fb15k-237"} == {
        "complex",
        "distmult",
        "rotate",
        "transe",
    }


def test_recipes_are_listed_and_written(monkeypatch, capsys, tmp_path):
    listed = answer(monkeypatch, capsys, "recipes")["recipes"]
    assert len(listed) == len(shipped_recipes())
    assert {each["model"] for each in answer(monkeypatch, capsys, "recipes", "cora")["recipes"]} == {
        "gat",
        "gcn",
        "sage",
    }
    found = answer(monkeypatch, capsys, "recipes", "cora", "gat", "--data", "sets", "--seed", 4)
    assert found["published"] == 83.0 and found["job"]["graph"] == "sets/cora-scaled" and found["job"]["seed"] == 4
    code, printed, _ = command(monkeypatch, capsys, "recipes", "cora", "gat")
    assert code == 0 and printed == job_text(recipe_for("cora", "gat"))
    code, printed, _ = command(monkeypatch, capsys, "recipes", "cora", "gat", "--out", tmp_path / "job.yaml")
    assert code == 0 and read_job(tmp_path / "job.yaml", {}).heads == 8
    assert refusal(monkeypatch, capsys, "recipes", "cora", "gat", "--out", tmp_path / "job.yaml").code == "file-exists"
    code, printed, _ = command(monkeypatch, capsys, "recipes")
    assert code == 0 and printed.count("\n") == len(listed)


def test_wrong_names_are_refused(monkeypatch, capsys, tmp_path):
    assert "cora" in refusal(monkeypatch, capsys, "recipes", "corra")
    assert "gat, gcn, sage" in refusal(monkeypatch, capsys, "recipes", "cora", "gin")
    assert refusal(monkeypatch, capsys, "recipes", "cora", "--out", tmp_path / "x").code == "option-missing"
