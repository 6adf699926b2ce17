"""Graph folders with wrong numbers in them: one sentence, exit code 2, and no run that seems to be running."""

import functools
import json

import numpy as np
import pytest

import penstock as ps
from in_process import answer, refusal
from penstock import Cut, Graph, cut
from penstock.api import train
from penstock.train.dataset.labels import check_classes
from penstock.train.job import make_job
from penstock.train.run_files.run_folder import RunFolder
from refusals import refused
from training_graphs import SMALL, community_graph, lists_of, trained, typed_graph

FEW = ["--fanouts", "4,3", "--hidden", "16", "--batch-size", "16", "--epochs", "1", "--threads", "1"]
LISTS = "edges/node__to__node"


@pytest.fixture
def refused_command(monkeypatch, capsys):
    return functools.partial(refusal, monkeypatch, capsys)


@pytest.fixture
def answered(monkeypatch, capsys):
    return functools.partial(answer, monkeypatch, capsys)


def weighted_graph():
    graph = community_graph()
    graph.edges["node", "to", "node"].fields["w"] = np.ones(graph.num_edges, np.float32)
    graph.nodes["node"].fields["t"] = np.zeros(200)
    return graph


@pytest.fixture
def folder(tmp_path):
    weighted_graph().save(tmp_path / "graph")
    return tmp_path / "graph"


def change(path, place, value):
    values = np.load(path)
    values[place] = value
    np.save(path, values)


WRONG = [
    (f"{LISTS}/indices.npy", 5, 200, "indices.npy holds 200 at position 5"),
    (f"{LISTS}/indices.npy", 5, 10**6, "indices.npy holds 1000000 at position 5"),
    (f"{LISTS}/indices.npy", 5, -4, "indices.npy holds -4 at position 5"),
    (f"{LISTS}/indptr.npy", 9, 1, "indptr.npy falls from"),
    ("nodes/node/split.train.npy", 0, -1, "split.train.npy holds -1 at position 0"),
    ("nodes/node/field.y.npy", 17, 10**9, "is 1000000000 in row 17, which asks for 1,000,000,001 classes"),
    ("nodes/node/field.x.npy", (slice(17, 20), 1), np.nan, "numbers in 3 rows, first nan in row 17"),
    ("nodes/node/field.x.npy", (17, 1), -np.inf, "numbers in 1 row, first -inf in row 17"),
]


@pytest.mark.parametrize("file, place, value, said", WRONG)
def test_train_refuses(folder, refused_command, tmp_path, file, place, value, said):
    change(folder / file, place, value)
    assert said in refused_command("train", "--graph", folder, "--run", tmp_path / "run", *FEW)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_weights_that_cannot_be_drawn_by(folder, refused_command, tmp_path, value):
    change(folder / LISTS / "field.w.npy", slice(4, 6), value)
    said = refused_command("train", "--graph", folder, "--run", tmp_path / "run", "--weight", "w", *FEW)
    assert "Field 'w' of node__to__node has 2 weights" in said and f"first {value} at edge 4" in said
    assert not (tmp_path / "run").exists()


def test_times_that_are_nan(folder, refused_command, tmp_path):
    change(folder / "nodes" / "node" / "field.t.npy", [3, 7], np.nan)
    said = refused_command("train", "--graph", folder, "--run", tmp_path / "run", "--time", "node:t", *FEW)
    assert "field.t.npy has 2 times that are NaN, the first in row 3" in said
    assert not (tmp_path / "run").exists()


def test_the_other_commands_refuse(folder, refused_command, answered, tmp_path):
    answered("train", "--graph", folder, "--run", tmp_path / "run", *FEW)
    change(folder / LISTS / "indices.npy", 5, 200)
    out = tmp_path / "out"
    for command in (
        ["partition", folder, "--parts", "2", "--out", out],
        ["partition", folder, "--parts", "2", "--compare"],
        ["bench", "sampling", "--graph", folder, "--batches", "1"],
        ["evaluate", tmp_path / "run"],
        ["predict", tmp_path / "run", "--out", out.with_suffix(".csv")],
        ["embed", tmp_path / "run", "--out", out.with_suffix(".csv")],
        ["profile", "--graph", folder, "--cluster", "2x1", "--out", out, *FEW],
        ["data", "inspect", folder],
    ):
        assert "indices.npy holds 200 at position 5" in refused_command(*command), command
        assert not out.exists()


def test_a_cluster_refuses_before_it_has_a_folder(folder, refused_command, tmp_path):
    cut(Graph.open(folder), Cut(2, method="chunk"), tmp_path / "parts")
    change(tmp_path / "parts" / "part1" / LISTS / "indices.npy", 5, 200)
    cluster = tmp_path / "cluster.json"
    machines = [{"name": name, "workers": 1} for name in ("a", "b")]
    cluster.write_text(json.dumps({"machines": machines, "partition": str(tmp_path / "parts")}))
    said = refused_command("train", "--graph", folder, "--run", tmp_path / "run", "--cluster", cluster, *FEW)
    assert "part1" in said and "indices.npy holds 200 at position 5" in said
    assert not (tmp_path / "run").exists()


def test_unchecked_is_believed(folder, answered, refused_command, tmp_path):
    """A split that is wrong only where nobody looks stands for wrong numbers that would crash."""
    np.save(folder / "nodes" / "node" / "split.spare.npy", np.array([-7]))
    document = json.loads((folder / "graph.json").read_text())
    document["node_types"]["node"]["splits"]["spare"] = 1
    (folder / "graph.json").write_text(json.dumps(document))
    run = ["train", "--graph", folder, *FEW]
    assert "split.spare.npy holds -7" in refused_command(*run, "--run", tmp_path / "refused_command")
    train(ps.load(folder, unchecked=True), run=str(tmp_path / "run"), **SMALL)
    answered("evaluate", tmp_path / "run", "--unchecked")
    assert "split.spare.npy holds -7" in refused_command("evaluate", tmp_path / "run", "--graph", folder)
    answered("evaluate", tmp_path / "run", "--graph", folder, "--unchecked")


def test_many_classes_that_never_occur_are_refused(folder, refused_command, tmp_path):
    change(folder / "nodes" / "node" / "field.y.npy", 17, 20_000)
    said = refused_command("train", "--graph", folder, "--run", tmp_path / "run", *FEW)
    assert "20,001 classes where 5 different labels occur: number the labels from 0 without gaps" in said


def test_many_classes_that_occur_are_taken(folder, answered, tmp_path):
    """Four classes are many here; the run folder says how many its model has."""
    check_classes(20_001, np.arange(20_001), make_job({}), "vertices")
    trained(Graph.open(folder), tmp_path / "run", max_classes=3)
    assert RunFolder.open(tmp_path / "run").job().max_classes == 4
    answered("evaluate", tmp_path / "run")


def test_labels_of_edges_are_counted_too(refused_command, tmp_path):
    graph = typed_graph()
    kind = ("paper", "cites", "paper")
    labels = np.arange(graph.edges[kind].count) % 3
    labels[4] = 10**9
    graph.edges[kind].fields["kind"] = labels
    graph.save(tmp_path / "graph")
    said = refused_command("train", "--graph", tmp_path / "graph", "--run", tmp_path / "run", "--label", "kind", *FEW)
    assert "edges paper__cites__paper is 1000000000 in row 4" in said


def test_a_run_folder_does_not_invent_classes(folder, refused_command, answered, tmp_path):
    answered("train", "--graph", folder, "--run", tmp_path / "run", *FEW)
    path = tmp_path / "run" / "run.json"
    facts = json.loads(path.read_text())
    facts["labels"]["classes"] = 10**9
    path.write_text(json.dumps(facts))
    assert "learned 1,000,000,000 classes" in refused_command("evaluate", tmp_path / "run")


def test_embeddings_of_vertices_that_a_document_invents(refused_command, tmp_path):
    """Authors have neither features nor lists of their own: only graph.json says how many there are."""
    graph = typed_graph()
    del graph.edges["paper", "by", "author"]
    Graph(graph.nodes, graph.edges, "papers").save(tmp_path / "graph")
    path = tmp_path / "graph" / "graph.json"
    document = json.loads(path.read_text())
    document["node_types"]["author"].update(count=10**13, total=10**13)
    path.write_text(json.dumps(document))
    said = refused_command("train", "--graph", tmp_path / "graph", "--run", tmp_path / "run", *FEW)
    assert "Embeddings of 10,000,000,000,000 vertices 'author'" in said


def test_a_loss_that_is_nan_is_explained_by_its_inputs(folder, refused_command, tmp_path):
    """Features too large to be read through beforehand stand here as ones that nobody was to check."""
    change(folder / "nodes" / "node" / "field.x.npy", ([3, 9, 11], 0), np.inf)
    with refused("diverged") as said:
        train(ps.load(folder, unchecked=True), run=str(tmp_path / "run"), **SMALL)
    assert "in 3 rows, first inf in row 3: training stopped" in str(said.value) and "lr" not in str(said.value)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["state"] == "failed"


def test_outputs_that_are_nan_are_explained_by_their_inputs(folder, refused_command, tmp_path):
    """A vertex that nobody reads in training, judged afterwards."""
    graph = community_graph()
    alone = int(graph.nodes["node"].splits["val"][0])
    edges = graph.edges["node", "to", "node"]
    ends = [side[(edges.indices != alone) & (edges.destinations() != alone)] for side in edges.edge_index()]
    graph.edges["node", "to", "node"] = lists_of(*ends, 200, 200)
    graph.nodes["node"].fields["x"][alone] = np.nan
    graph.save(tmp_path / "alone")
    with refused("not-finite") as said:
        train(ps.load(tmp_path / "alone", unchecked=True), run=str(tmp_path / "run"), **SMALL)
    assert "An output is NaN because" in str(said.value) and f"first nan in row {alone}" in str(said.value)


def test_a_loss_that_diverges_by_itself_is_still_told_so(folder, refused_command, tmp_path):
    said = refused_command("train", "--graph", folder, "--run", tmp_path / "run", "--lr", "1e30", *FEW)
    assert "lower lr" in said


def test_a_part_with_features_that_are_nan(folder, tmp_path):
    """Found by the part's owner, whoever else computes with its rows."""
    graph = Graph.open(folder)
    x = graph.x.copy()
    x[3] = np.nan
    graph.nodes["node"].fields["x"] = x
    with refused("diverged parts/part 1"):
        trained(graph, tmp_path / "run", cluster="2x1", unchecked=True)


def test_targets_beyond_float32_are_not_known(tmp_path):
    graph = community_graph()
    targets = np.linspace(0, 1, 200)
    first = int(graph.nodes["node"].splits["train"][0])
    targets[first] = 1e300
    graph.nodes["node"].fields["y"] = targets
    with refused(f"missing-data 'y' {first}"):
        trained(graph, tmp_path / "run")
