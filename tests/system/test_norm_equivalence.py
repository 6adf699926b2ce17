"""Batch normalisation on one machine and on clusters: the statistics of the whole batch, the same losses."""

from typing import ClassVar

import numpy as np
import pytest

import penstock as ps
from cluster_runs import JOB, assert_same_losses, cluster_file, disturbed_run, in_parts, machines, run_on
from penstock import Graph
from penstock.progress import Progress
from penstock.train.use import evaluate_run
from training_graphs import assert_same_state, community_graph, newest_checkpoint, trained, typed_graph

ROUNDING = 1e-4
"""Losses of a few steps: sums of 32-bit numbers in another order."""
FIELDS = {"norm": "batch", "residual": True, "jump": "cat", "optimiser": "SGD", "lr": 0.05, "epochs": 2}
"""What a norm takes out again, as a bias before it, has a gradient of rounding alone, which Adam makes a step of."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A graph with edge weights and times of vertices, and its run on one machine."""
    folder = tmp_path_factory.mktemp("norm")
    graph = community_graph()
    rng = np.random.default_rng(1)
    (edges,) = graph.edges.values()
    edges.fields["w"] = (rng.uniform(0.5, 2.0, edges.count) * (rng.random(edges.count) > 0.2)).astype(np.float32)
    graph.nodes["node"].fields["when"] = rng.integers(0, 100, graph.num_nodes)
    saved = graph.save(folder / "graph")
    trained(saved, folder / "one", **{**JOB, **FIELDS})
    return folder, saved


class Notes(Progress):
    """Remembers what a run remarks."""

    said: ClassVar[list[str]] = []

    def note(self, sentence):
        self.said.append(sentence)


def assert_near(run, one):
    """Losses, metrics, and running figures; with these the best model says elsewhere what it said in its run."""
    assert_same_losses(run.path, one, ROUNDING)
    ours, theirs = newest_checkpoint(run.path)["learned"], newest_checkpoint(one)["learned"]
    moved = [name for name in theirs if "running" in name or "tracked" in name]
    assert moved
    for name in moved:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-4)


def test_one_worker_has_the_same_bits(place, tmp_path):
    """On a graph that is only in memory: its parts are in the run folder, where the run's later uses find it."""
    folder, graph = place
    only = Graph(graph.nodes, graph.edges, "only")
    cluster = cluster_file(tmp_path, machines=machines(1, 0), method="random")
    run = ps.train(only, cluster=cluster, run=str(tmp_path / "run"), progress=Notes(), **{**JOB, **FIELDS, "epochs": 1})
    assert sorted(path.name for path in (run.path / "parts").glob("part?")) == ["part0", "part1"]
    assert not (run.path / "graph").exists() and "parts are written to" in Notes.said[0]
    ps.train(resume=run.path, epochs=FIELDS["epochs"])
    assert_same_losses(run.path, folder / "one", 0)
    assert_same_state(newest_checkpoint(run.path)["learned"], newest_checkpoint(folder / "one")["learned"])
    assert evaluate_run(run.path, ["test"]) == evaluate_run(folder / "one", ["test"])


@pytest.mark.parametrize(
    "way", [{"reduce": "all-reduce"}, pytest.param({"reduce": "servers", "samplers": 1}, marks=pytest.mark.long)]
)
def test_three_workers_lose_as_one(place, tmp_path, way):
    """The last batch of an epoch has fewer seeds than there are workers."""
    folder, graph = place
    train = len(graph.nodes["node"].splits["train"])
    fields = {**FIELDS, "batch_size": train - 1}
    one = trained(graph, tmp_path / "one", **{**JOB, **fields})
    cluster = cluster_file(tmp_path, machines=machines(2, 1), partition=in_parts(graph, 2, folder), **way)
    run = run_on(cluster, graph.path, tmp_path / "run", **fields)
    assert_near(run, one.path)
    scores = evaluate_run(run.path, ["val", "test"])
    assert scores["val"] == pytest.approx(run.facts["result"]["val"])
    assert scores["test"] == pytest.approx(run.facts["result"]["test"])


@pytest.mark.long
@pytest.mark.parametrize("reduce", ["all-reduce", "servers"])
def test_a_worker_that_dies_changes_no_bit(place, tmp_path, reduce):
    """The step under way moves the running figures once."""
    folder, graph = place
    cluster = cluster_file(tmp_path, machines=machines(1, 1), partition=in_parts(graph, 2, folder), reduce=reduce)
    fields = {**FIELDS, "epochs": 5}
    calm = run_on(cluster, graph.path, tmp_path / "calm", **fields)
    hit = disturbed_run("worker-1", 2, cluster, graph.path, tmp_path / "hit", **fields)
    assert [each["task"] for each in hit.facts["result"]["recoveries"]] == ["worker-1"]
    assert_same_losses(hit.path, calm.path, 0)
    assert_same_state(newest_checkpoint(hit.path), newest_checkpoint(calm.path))


@pytest.mark.long
def test_types_of_which_a_worker_may_have_no_row(tmp_path):
    graph = typed_graph().save(tmp_path / "graph")
    fields = {"norm": "batch", "model": "sage", "dropout": 0.5, "embedding": 8, "batch_size": 6, "epochs": 1}
    fields |= {"optimiser": "SGD", "lr": 0.05}
    one = trained(graph, tmp_path / "one", **{**JOB, **fields})
    cluster = cluster_file(tmp_path, machines=machines(1, 1), partition=in_parts(graph, 2, tmp_path))
    assert_near(run_on(cluster, graph.path, tmp_path / "run", **fields), one.path)


@pytest.mark.long
def test_links(place, tmp_path):
    folder, graph = place
    fields = {**FIELDS, "task": "link-prediction", "batch_size": 250, "epochs": 1}
    one = trained(graph, tmp_path / "one", **{**JOB, **fields})
    cluster = cluster_file(tmp_path, machines=machines(1, 1), partition=in_parts(graph, 2, folder))
    assert_near(run_on(cluster, graph.path, tmp_path / "run", **fields), one.path)


@pytest.mark.long
def test_by_the_times_of_vertices_and_in_proportion_to_weights(place, tmp_path):
    """Rows of a seed's own tree are nobody else's, though others have the same vertex."""
    folder, graph = place
    fields = {**FIELDS, "time": "node:when", "weight": "w", "model": "gcn", "epochs": 1}
    one = trained(graph, tmp_path / "one", **{**JOB, **fields})
    cluster = cluster_file(tmp_path, machines=machines(1, 1), partition=in_parts(graph, 2, folder), samplers=1)
    assert_near(run_on(cluster, graph.path, tmp_path / "run", **fields), one.path)
