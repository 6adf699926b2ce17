"""Tasks on edges, on one machine and on clusters: the same edges, negatives and neighbourhoods, the same losses."""

import numpy as np
import pytest

from cluster_runs import (
    JOB,
    assert_same_losses,
    cluster_file,
    disturbed_run,
    in_parts,
    machines,
    run_on,
)
from penstock.sampling.links import split_edges
from training_graphs import (
    assert_same_state,
    community_graph,
    facts_of,
    newest_checkpoint,
    numbered_edges,
    trained,
    typed_graph,
)

ROUNDING = 1e-4
"""Losses of a few steps: sums of 32-bit numbers in another order."""
WRITES = ("author", "writes", "paper")
TYPED = {"model": "sage", "dropout": 0.5, "embedding": 8, "epochs": 1}


def both(graph, folder, parts, cluster, **fields):
    """A job trained on one machine and on a cluster: both runs."""
    saved = graph.save(folder / "graph")
    one = trained(saved, folder / "one", **{**JOB, **fields})
    file = cluster_file(folder, partition=in_parts(saved, parts, folder), **cluster)
    return run_on(file, saved.path, folder / "run", **fields), one


def assert_same(run, one, tolerance):
    """Losses, metrics, and what is said of the graph and the labels."""
    assert_same_losses(run.path, one.path, tolerance)
    assert run.facts["result"]["val"] == pytest.approx(one.val, abs=tolerance)
    assert run.facts["result"]["test"] == pytest.approx(one.test, abs=tolerance)
    ours, theirs = facts_of(run.path), facts_of(one.path)
    assert ours["graph"]["edges"] == theirs["graph"]["edges"] and ours["labels"] == theirs["labels"]


@pytest.mark.parametrize(
    "fields",
    [
        {"negatives": "uniform", "corrupt": "both", "negatives_per_edge": 3},
        pytest.param({"negatives": "joint", "negatives_per_edge": 8, "loss": "softmax"}, marks=pytest.mark.long),
        pytest.param({"negatives": "in-batch", "metric": "roc-auc"}, marks=pytest.mark.long),
        pytest.param({"rank_against": 0, "target": "paper__cites__paper", **TYPED}, marks=pytest.mark.long),
    ],
)
def test_links_of_a_symmetric_graph(tmp_path, fields):
    """Two workers, and a sampler each; the graph holds no edges out, so that the job does."""
    fields = {"task": "link-prediction", "batch_size": 250, "epochs": 2, **fields}
    graph = typed_graph() if "target" in fields else community_graph()
    run, one = both(graph, tmp_path, 2, {"machines": machines(1, 1), "samplers": 1}, **fields)
    assert_same(run, one, ROUNDING)


@pytest.mark.parametrize(
    "fields, samplers",
    [
        ({"task": "link-prediction", "corrupt": "both", "rank_against": 5}, 1),
        pytest.param({"task": "link-prediction", "rank_against": 5, "metric": "roc-auc"}, 0, marks=pytest.mark.long),
        pytest.param({"task": "edge-classification", "label": "kind"}, 1, marks=pytest.mark.long),
        pytest.param({"task": "edge-regression", "label": "kind"}, 1, marks=pytest.mark.long),
    ],
)
def test_edges_sampled_by_time(tmp_path, fields, samplers):
    """Two workers: each has its edges' ends at their times, at their places in the whole batch."""
    graph = community_graph(60, degree=3)
    (edges,) = graph.edges.values()
    rng = np.random.default_rng(1)
    edges.fields["t"], edges.fields["kind"] = rng.integers(0, 50, edges.count), rng.integers(0, 3, edges.count)
    fields = {"time": "t", "batch_size": 100, "epochs": 1, **fields}
    run, one = both(graph, tmp_path, 2, {"machines": machines(1, 1), "samplers": samplers}, **fields)
    assert_same(run, one, ROUNDING)


@pytest.mark.parametrize(
    "fields, samplers",
    [
        pytest.param(
            {"task": "link-prediction", "target": "author__writes__paper", "rank_against": 5},
            1,
            marks=pytest.mark.long,
        ),
        pytest.param({"task": "node-classification", "seed_time": "when"}, 0, marks=pytest.mark.long),
        pytest.param({"task": "node-classification", "seed_time": "when"}, 1, marks=pytest.mark.long),
    ],
)
def test_several_types_sampled_by_time(tmp_path, fields, samplers):
    """Edges and vertices, where one relation has no times: its edges are always there."""
    graph = typed_graph(60)
    rng = np.random.default_rng(1)
    for kind, edges in graph.edges.items():
        if kind[1] != "cites":
            edges.fields["t"] = rng.integers(0, 50, edges.count)
    for nodes in graph.nodes.values():
        nodes.fields["when"] = rng.integers(20, 50, nodes.count)
    fields = {"time": "t", "batch_size": 40, **TYPED, **fields, "model": "rgcn"}
    run, one = both(graph, tmp_path, 2, {"machines": machines(1, 1), "samplers": samplers}, **fields)
    assert_same(run, one, ROUNDING)


@pytest.mark.parametrize("samplers", [pytest.param(0, marks=pytest.mark.long), 1])
def test_one_worker_has_the_same_bits(tmp_path, samplers):
    """Drawn by edge weights from lists that lack what is held out."""
    graph = community_graph(100)
    (edges,) = graph.edges.values()
    edges.fields["w"] = np.random.default_rng(1).uniform(0.5, 2.0, edges.count).astype(np.float32)
    fields = {"task": "link-prediction", "batch_size": 200, "weight": "w", "model": "gcn", "epochs": 1}
    run, one = both(graph, tmp_path, 3, {"machines": machines(1, 0), "samplers": samplers}, **fields)
    assert_same(run, one, 0)
    assert_same_state(newest_checkpoint(run.path)["learned"], newest_checkpoint(one.path)["learned"])


def test_links_between_types_with_learned_rows(tmp_path):
    """Authors have no features; what is held out leaves the reverse relation too."""
    fields = {"task": "link-prediction", "target": "author__writes__paper", "batch_size": 60, **TYPED}
    run, one = both(typed_graph(), tmp_path, 2, {"machines": machines(1, 1)}, **fields)
    assert_same(run, one, ROUNDING)


@pytest.mark.long
@pytest.mark.parametrize("victim", ["worker-1", "store-m0"])
def test_a_task_that_dies_changes_no_bit(tmp_path, victim):
    """About when held-out edges are ranked, and with gradients that are clipped together with learned rows'."""
    graph = typed_graph().save(tmp_path / "graph")
    fields = {"task": "link-prediction", "target": "author__writes__paper", "batch_size": 60, "clip": 0.3, **TYPED}
    fields |= {"epochs": 3, "rank_against": 0}
    cluster = cluster_file(tmp_path, machines=machines(1, 1), partition=in_parts(graph, 2, tmp_path))
    calm = run_on(cluster, graph.path, tmp_path / "calm", **fields)
    hit = disturbed_run(victim, 1, cluster, graph.path, tmp_path / "hit", **fields)
    assert [each["task"] for each in hit.facts["result"]["recoveries"]] == [victim]
    assert hit.facts["result"]["test"] == calm.facts["result"]["test"]
    ours, theirs = newest_checkpoint(hit.path), newest_checkpoint(calm.path)
    assert_same_state(ours["learned"], theirs["learned"])
    assert_same_state(ours["tables"], theirs["tables"])


@pytest.mark.long
def test_edges_that_the_graph_holds_out(tmp_path):
    graph = split_edges(typed_graph(), ("paper", "cites", "paper"), (0.1, 0.1), 3)
    run, one = both(graph, tmp_path, 2, {"machines": machines(1, 1)}, task="link-prediction", batch_size=90, **TYPED)
    assert_same(run, one, ROUNDING)


@pytest.mark.parametrize("way", [{"samplers": 1}, pytest.param({"reduce": "servers"}, marks=pytest.mark.long)])
def test_numbers_of_edges(tmp_path, way):
    """The task is not named: the parts' owners have the labels, some edges without one among them."""
    fields = {"label": "score", "batch_size": 250, "epochs": 2, "loss": "mae"}
    run, one = both(numbered_edges(), tmp_path, 2, {"machines": machines(1, 1), **way}, **fields)
    assert facts_of(run.path)["task"] == facts_of(one.path)["task"] == "edge-regression"
    assert_same(run, one, ROUNDING)


@pytest.mark.parametrize(
    "workers, way", [pytest.param(4, {"samplers": 1}, marks=pytest.mark.long), (2, {"reduce": "servers"})]
)
def test_classes_of_edges(tmp_path, workers, way):
    """With words for the classes, edges without one, and a last batch of fewer edges than there are workers."""
    graph = typed_graph()
    edges = graph.edges[WRITES]
    edges.fields["stars"] = np.random.default_rng(3).integers(-1, 3, edges.count)
    edges.categories["stars"] = ["bad", "fair", "good"]
    train = round(0.8 * np.count_nonzero(edges.fields["stars"] >= 0))
    fields = {"label": "stars", "split_ratio": [0.8, 0.1, 0.1], "batch_size": train - 1, **TYPED}
    run, one = both(graph, tmp_path, 2, {"machines": machines(1, workers - 1), **way}, **fields)
    assert facts_of(run.path)["task"] == "edge-classification"
    assert_same(run, one, ROUNDING)
