"""Jobs that are sampled by time: what is later than a seed changes nothing, in training and in exact inference."""

import json

import numpy as np
import pytest

from penstock import EdgeSet, Graph
from refusals import refused
from training_graphs import lists_of, newest_checkpoint, trained, typed_graph

ALL_HOPS = {"fanouts": [-1, -1], "dropout": 0.0, "device": "cpu"}


def timed_papers(late=0):
    """Papers and authors whose edges have times up to 50, and `late` edges of time 1000 in every relation."""
    graph = typed_graph(90)
    for nodes in graph.nodes.values():
        nodes.fields["when"] = np.random.default_rng(1).integers(20, 60, nodes.count)
    authors = graph.nodes["author"]
    authors.fields["x"] = np.random.default_rng(2).normal(size=(authors.count, 3)).astype(np.float32)
    return Graph(graph.nodes, {kind: _timed(graph, kind, edges, late) for kind, edges in graph.edges.items()}, "timed")


def _timed(graph, kind, edges, late):
    rng, more = np.random.default_rng(3), np.random.default_rng(4)
    counts = graph.nodes[kind[0]].count, graph.nodes[kind[2]].count
    sources, targets = np.asarray(edges.edge_index())
    times = rng.integers(0, 50, edges.count)
    sources = np.concatenate([sources, more.integers(0, counts[0], late)])
    targets = np.concatenate([targets, more.integers(0, counts[1], late)])
    times = np.concatenate([times, np.full(late, 1000)])
    order = np.lexsort((np.arange(len(sources)), sources, targets))
    made = lists_of(sources, targets, *counts)
    return EdgeSet(made.indptr, made.indices, {"t": times[order]})


def losses_of(run):
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    return [record["loss"] for record in map(json.loads, lines) if record["kind"] == "step"]


@pytest.mark.parametrize("model", ["rgcn", pytest.param("hgt", marks=pytest.mark.long)])
def test_later_edges_change_nothing(tmp_path, model):
    fields = {**ALL_HOPS, "model": model, "heads": 2, "time": "t", "seed_time": "when"}
    before = trained(timed_papers(), tmp_path / "before", **fields)
    after = trained(timed_papers(late=60), tmp_path / "after", **fields)
    np.testing.assert_allclose(losses_of(after), losses_of(before), rtol=1e-5)
    assert (after.val, after.test) == (before.val, before.test)
    # Without time they do change what is learned.
    free = trained(timed_papers(late=60), tmp_path / "free", **{**fields, "time": None, "seed_time": None})
    assert not np.allclose(losses_of(free), losses_of(before), rtol=1e-3)


@pytest.mark.parametrize("model", ["transformer", "gatv2"])
def test_ages_are_learned_from_and_later_edges_are_not(tmp_path, model):
    def citations(late):
        graph, kind = timed_papers(late), ("paper", "cites", "paper")
        return Graph({"paper": graph.nodes["paper"]}, {kind: graph.edges[kind]}, "citations")

    fields = {**ALL_HOPS, "model": model, "heads": 2, "time": "t", "seed_time": "when", "time_width": 8}
    before = trained(citations(0), tmp_path / "before", **fields)
    after = trained(citations(60), tmp_path / "after", **fields)
    np.testing.assert_allclose(losses_of(after), losses_of(before), rtol=1e-5)
    assert after.val == before.val
    weights = newest_checkpoint(before.path)["learned"]
    (name, *_) = [name for name in weights if name.endswith("time.phase")]
    assert weights[name].abs().max() > 0


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"model": "sage", "time": "t", "seed_time": "when"}, "invalid-document sage time_width"),
        ({"model": "transformer"}, "unsupported-combination time_width"),
        ({"model": "gatv2", "time": "t", "seed_time": "when"}, "unsupported-combination time_width"),
    ],
)
def test_ages_that_nobody_knows_or_reads_are_refused(tmp_path, fields, said):
    with refused(said):
        trained(timed_papers(), tmp_path / "run", **ALL_HOPS, **fields, time_width=8)


def test_seeds_without_times_are_refused(tmp_path):
    with refused("field-missing paper t seed_time"):
        trained(timed_papers(), tmp_path / "run", **ALL_HOPS, model="rgcn", time="t")
