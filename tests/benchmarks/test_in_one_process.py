"""Workers' steps in one process, which accuracies are compared by, lose as a cluster does."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from cluster_runs import cluster_file, in_parts, losses_of, machines, run_on
from training_graphs import community_graph

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from explained_accuracy import compared
from in_one_process import Remote, trained

ROUNDING = 1e-4
FIELDS = {
    "fanouts": [3, 3],
    "hidden": 16,
    "batch_size": 60,
    "epochs": 6,
    "dropout": 0.3,
    "lr": 0.02,
    "threads": 1,
    "device": "cpu",
    "seed": 3,
    "evaluate_every": 3,
}
EXPLAINED = {"explain_every": 4, "explain_delay": 2, "explain_steps": 5, "explain_rows": 40, "feature_share": 0.5}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one-process")
    graph = community_graph().save(folder / "graph")
    return folder, graph, Path(in_parts(graph, 2, folder))


@pytest.mark.long
def test_explained_steps_lose_as_those_of_a_cluster(place, tmp_path):
    _, graph, parts = place
    cluster = cluster_file(tmp_path, machines=machines(1, 1), partition=str(parts))
    fields = {**FIELDS, **EXPLAINED}
    run = run_on(cluster, graph.path, tmp_path / "run", sampler="explained", **fields)
    told = json.loads((run.path / "run.json").read_text())["result"]
    found = trained({**fields, "graph": str(graph.path)}, parts, Remote(True))
    theirs = [loss for kind, _, loss in losses_of(run.path) if kind == "step"]
    assert told["explanations"]["vertices"]["remote"] > 0 and len(theirs) == len(found["losses"])
    np.testing.assert_allclose(found["losses"], theirs, atol=ROUNDING)


@pytest.mark.parametrize("more", [{}, {"sampler": "ladies", "fanouts": [60, 60]}])
def test_shares_of_a_batch_make_the_same_steps_as_the_whole(place, more):
    _, graph, parts = place
    fields = {name: value for name, value in {**FIELDS, **more, "graph": str(graph.path)}.items() if value is not None}
    alone, shared = trained(fields, None), trained(fields, parts)
    np.testing.assert_allclose(alone["losses"], shared["losses"], atol=ROUNDING)
    assert alone["test"] == pytest.approx(shared["test"], abs=0.02)
    assert shared["remote_rows"] > 0 and alone["remote_rows"] == 0


def test_fewer_columns_of_remote_rows_change_losses(place):
    _, graph, parts = place
    fields = {**FIELDS, "graph": str(graph.path)}
    assert trained(fields, parts)["losses"] != trained(fields, parts, Remote(columns=0.5))["losses"]


def test_random_masks_take_as_many_remote_rows(place):
    _, graph, parts = place
    fields = {**FIELDS, **EXPLAINED, "epochs": 20, "graph": str(graph.path)}
    found, random = (trained(fields, parts, Remote(True, masks))["remote_rows"] for masks in ("found", "random"))
    assert random == pytest.approx(found, rel=0.1)


def test_differences_are_paired_by_seed():
    def line(way, seed, test):
        case = {"graph": "g", "parts": 1 if way == "neighbour" else 4, "method": "metis", "fanout": 5}
        return {**case, "way": way, "seed": seed, "test": test, "processor_s": 1.0}

    lines = [
        line("neighbour", 0, 0.5),
        line("neighbour", 1, 0.7),
        line("explained", 0, 0.52),
        line("explained", 1, 0.7),
    ]
    rows = compared([*lines, line("explained", 2, 0.9)])
    (row,) = (row for row in rows if row["way"] == "explained" and row["graph"] == "g")
    assert (row["seeds"], row["difference"]) == (3, 1.0) and row["interval"] == pytest.approx(12.71, abs=0.01)
