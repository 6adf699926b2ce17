"""`penstock data import` and `penstock data export` as commands."""

import json
from pathlib import Path

import numpy as np
import pytest
from tables_workbench import FOLLOWS, USERS, Workbench
from typer.testing import CliRunner

from penstock.cli.data import data as app
from penstock.graph import Graph
from refusals import refused


def _run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def _spec(bench: Workbench, **more: object) -> Path:
    bench.table("users.parquet", {"id": ["a", "b"]})
    bench.table("follows.parquet", {"a": ["a", "b", "a"], "b": ["b", "q", "a"]})
    return bench.spec([USERS], [{**FOLLOWS, **more}])


def test_import_as_json(bench: Workbench) -> None:
    found = json.loads(_run("import", _spec(bench, dangling="drop"), "--out", bench.out, "--json"))
    assert found.pop("seconds") >= 0 and found.pop("peak_rss_mb") > 0
    assert found == {"path": str(bench.out), "nodes": 2, "edges": 2, "dropped": {"user__follows__user": 1}}
    again = json.loads(_run("import", _spec(bench, dangling="create"), "--out", bench.out, "--json", "--force"))
    assert again["created"] == {"user": 1} and "dropped" not in again


def test_import_for_people(bench: Workbench) -> None:
    said = _run("import", _spec(bench, dangling="drop"), "--out", bench.out)
    assert "user: 2 vertices" in said and "1 edge of user__follows__user" in said and str(bench.out) in said


def test_bad_input_is_a_penstock_error(bench: Workbench) -> None:
    with refused("id-out-of-range 2"):
        _run("import", _spec(bench), "--out", bench.out)
    assert not bench.out.exists()


def test_other_sources_go_through_load(bench: Workbench) -> None:
    np.savez(bench.folder / "small.npz", indptr=np.array([0, 0, 1, 2]), indices=np.array([0, 1]), num_nodes=3)
    found = json.loads(_run("import", bench.folder / "small.npz", "--out", bench.out, "--json"))
    assert (found["nodes"], found["edges"]) == (3, 2)
    assert Graph.open(bench.out).num_nodes == 3


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_export(bench: Workbench, form: str) -> None:
    _run("import", _spec(bench, dangling="create"), "--out", bench.out)
    tables = bench.folder / "tables"
    found = json.loads(_run("export", bench.out, "--out", tables, "--format", form, "--json"))
    assert found.pop("seconds") >= 0 and found.pop("peak_rss_mb") > 0
    files = [f"nodes/user.{form}", f"edges/user__follows__user.{form}", "spec.yaml"]
    assert found == {"path": str(tables), "nodes": 3, "edges": 3, "files": files}
    assert json.loads((tables / "export.json").read_text())["files"] == files
    assert "Wrote 3 files" in _run("export", bench.out, "--out", tables, "--force")
