"""Runs that begin with the weights and embeddings of an earlier one."""

import shutil

import numpy as np
import pytest

from cluster_runs import assert_same_losses, cluster_file, machines, run_on
from in_process import command, refusal
from penstock import Graph, NodeSet
from penstock.api import train
from penstock.train.build import make_session
from penstock.train.job import job_of
from penstock.train.run import begin_with, read_start
from penstock.train.run_files.checkpoints import read_best
from refusals import check_refusal, refused
from training_graphs import (
    SMALL,
    assert_same_state,
    community_graph,
    facts_of,
    lists_of,
    newest_checkpoint,
    trained,
    typed_graph,
)

STILL = {"lr": 1e-30, "embedding_lr": 1e-30, "epochs": 1, "evaluate_every": -1}
"""Steps so short that no weight changes."""


def session_on(graph):
    """A session that has made no step."""
    return make_session(job_of({**SMALL, "graph": "in memory"}), graph)


def with_authors(graph, count):
    """The typed graph with another number of authors, of whom those behind the first write nothing."""
    nodes, edges = dict(graph.nodes), dict(graph.edges)
    nodes["author"] = NodeSet(count)
    by = edges["paper", "by", "author"]
    edges["paper", "by", "author"] = lists_of(by.indices, by.destinations(), nodes["paper"].count, count)
    return Graph(nodes, edges, graph.name)


@pytest.mark.parametrize(
    "graph, fields",
    [
        (community_graph(), {}),
        (community_graph(), {"sampler": "whole"}),
        (community_graph(features=False), {"task": "link-prediction", "batch_size": 200}),
    ],
    ids=["sampled", "whole", "links"],
)
def test_the_first_step_sees_the_weights_of_the_best_model(graph, fields, tmp_path):
    first = trained(graph, tmp_path / "first", **fields)
    second = train(graph, **{**SMALL, **fields, **STILL}, from_run=first.path, run=tmp_path / "second")
    best, state = read_best(first.path / "checkpoints"), newest_checkpoint(second.path)
    assert_same_state(state["learned"], best["learned"])
    for name, table in best["tables"].items():
        assert_same_state(state["tables"][name]["rows"], table["rows"])
    assert facts_of(second.path)["from"]["run"] == str(first.path)


def test_new_vertices_are_initialised_as_new_and_old_ones_keep_theirs(tmp_path):
    graph = typed_graph()
    first = trained(graph, tmp_path / "first")
    start, grown = read_start(first.path), with_authors(graph, 57)
    fresh, session = session_on(grown), session_on(grown)
    begin_with(session, start)
    table = session.inputs.tables["author"]
    np.testing.assert_array_equal(table.rows[:50], start["rows"]["author"])
    np.testing.assert_array_equal(table.rows[50:], fresh.inputs.tables["author"].rows[50:])
    assert not table.moments[0].any()
    start["rows"]["author"] = table.rows
    with refused(f"mismatched-inputs 57 50 author {first.path}"):
        begin_with(session_on(graph), start)


@pytest.mark.parametrize(
    "changes, names",
    [
        ({"hidden": 8}, ["16x", "8x"]),
        ({"model": "gcn"}, ["missing"]),
        ({"columns": 3}, ["4", "3", "columns"]),
        ({"classes": 3}, ["classes", "4", "3"]),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_in_a_sentence(changes, names, tmp_path, monkeypatch, capsys):
    graph = community_graph()
    first = trained(graph, tmp_path / "first")
    fields = dict(changes)
    if "columns" in fields:
        graph.nodes["node"].fields["x"] = graph.x[:, : fields.pop("columns")].copy()
    if "classes" in fields:
        graph.nodes["node"].fields["y"] = graph.y % fields.pop("classes")
    stored = graph.save(tmp_path / "graph")
    asked = [f"--{name}={value}" for name, value in fields.items()]
    run = ["train", "--from", first.path, "--graph", stored.path, "--run", tmp_path / "second", *asked]
    check_refusal(*_parts(refusal(monkeypatch, capsys, *run)), f"mismatched-inputs {' '.join(names)}")
    assert not (tmp_path / "second").exists()


def _parts(sentence):
    return sentence.code, sentence


def test_it_resumes_without_the_earlier_run(tmp_path, monkeypatch, capsys):
    graph = community_graph().save(tmp_path / "graph")
    first = trained(graph, tmp_path / "first")
    told = "--graph", graph.path, "--run", tmp_path / "second", "--epochs", 1
    assert command(monkeypatch, capsys, "train", "--from", first.path, *told)[0] == 0
    assert facts_of(tmp_path / "second")["parameters"] == facts_of(first.path)["parameters"]
    shutil.rmtree(first.path)
    second = train(resume=tmp_path / "second", epochs=2)
    assert second.state == "finished" and second.result["epochs"] == 2
    with refused(f"wrong-file {first.path}"):
        train(graph, from_run=first.path)


def test_workers_of_a_cluster_begin_with_them_too(tmp_path):
    """Rows lie at their owners there, and the first worker gives the others the weights."""
    graph = typed_graph().save(tmp_path / "graph")
    first = trained(graph, tmp_path / "first")
    fields = {**SMALL, "dropout": 0.0, "from_run": str(first.path), "epochs": 1}
    train(graph, **fields, run=tmp_path / "alone")
    run = run_on(cluster_file(tmp_path, machines=machines(1, 1)), graph.path, tmp_path / "two", **fields)
    assert_same_losses(run.path, tmp_path / "alone", 1e-4)
    assert not (run.path / "checkpoints" / "start.ckpt").exists()
