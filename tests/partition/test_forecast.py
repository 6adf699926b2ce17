"""`auto` and `--plan`: what a cut will take, and which method fits."""

import json
from dataclasses import replace

import numpy as np
import pytest

from forks import forked_command as run
from penstock.partition import Cut, assign, cut, forecast, open_partition
from penstock.partition.methods import METHODS
from penstock.progress import Progress
from random_graphs import directed_graph, mesh_graph
from refusals import refused


@pytest.mark.parametrize(
    "free, installed, taken",
    [(10_000, True, "metis"), (90, True, "kaminpar"), (90, False, "stream"), (1, True, "stream")],
)
def test_auto_takes_the_first_method_that_fits(monkeypatch, free, installed, taken):
    graph = mesh_graph()
    monkeypatch.setattr(forecast, "available_mb", lambda: free)
    monkeypatch.setattr(forecast, "has_kaminpar", lambda: installed)
    known = forecast.EXPERIENCE
    sizes = {"metis": 100, "kaminpar": 50, "stream": 20}
    large = {name: replace(known[name], fixed_bytes=size << 20) for name, size in sizes.items()}
    monkeypatch.setattr(forecast, "EXPERIENCE", known | large)
    method, why = forecast.chosen(graph, 4, 1, 2)
    assert method == taken and taken in why


def test_auto_says_what_it_took_and_the_folder_keeps_it(tmp_path):
    heard = Progress()
    heard.note = heard.notes.append
    made = cut(mesh_graph(), Cut(4, method="auto"), tmp_path / "p", progress=heard)
    assert made.document.method == "metis"
    assert open_partition(tmp_path / "p").document.chosen == made.document.chosen == heard.notes[0]
    expected = assign(mesh_graph(), Cut(4, method="metis"))
    assert made.document.metrics["edge_cut"] == expected.metrics.edge_cut
    assert cut(mesh_graph(), Cut(4), tmp_path / "q").document.chosen is None


def test_every_own_method_has_a_forecast_and_directed_lists_count_twice():
    assert set(forecast.EXPERIENCE) == set(METHODS)
    graph = directed_graph()
    mesh = mesh_graph()
    assert not forecast._has_both_directions(graph)
    assert forecast._has_both_directions(mesh)
    for found in forecast.forecasts(graph, 4, 1, 2):
        assert 0 <= found.cut[0] <= found.cut[1] <= 1
        assert np.isfinite([found.seconds, found.memory_mb]).all()
    more = {each.method: each.seconds for each in forecast.forecasts(graph, 4, 9, 2)}
    once = {each.method: each.seconds for each in forecast.forecasts(graph, 4, 1, 2)}
    assert more["stream"] > once["stream"] and more["metis"] == once["metis"]


def test_plan_prints_and_writes_nothing(tmp_path):
    mesh_graph().save(tmp_path / "g")
    before = sorted(tmp_path.rglob("*"))
    found = json.loads(run("partition", str(tmp_path / "g"), "--parts", "4", "--plan", "--json").stdout)
    assert found["auto"] == "metis" and {row["method"] for row in found["plan"]} == set(METHODS)
    assert "auto takes metis" in run("partition", str(tmp_path / "g"), "--parts", "4", "--plan").stdout
    assert sorted(tmp_path.rglob("*")) == before


def test_plan_refuses_what_a_cut_refuses(tmp_path):
    with refused("value-out-of-range"):
        assign(mesh_graph(), Cut(5000, method="auto"))
