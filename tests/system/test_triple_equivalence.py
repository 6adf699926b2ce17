"""Knowledge graph completion on one machine and on clusters: the same triples and negatives, the same losses."""

import pytest

from cluster_runs import JOB, assert_same_losses, cluster_file, disturbed_run, in_parts, machines, run_on
from knowledge_graph import family_graph, shop_graph
from refusals import refused
from training_graphs import assert_same_state, facts_of, newest_checkpoint, trained

ROUNDING = 1e-4
"""Losses of a few steps: sums of 32-bit numbers in another order."""
TRIPLES = {"model": "embedding", "embedding": 8, "batch_size": 37, "epochs": 2, "corrupt": "both", "scorer": "complex"}
SHARED = {"negatives": "joint", "negatives_per_edge": 9, "loss": "softmax", "inverse_relations": True}
ALL = {"negatives": "all", "loss": "softmax", "regulariser": "n3", "regularisation": 0.01}
OWN = {
    "scorer": "rotate",
    "negatives_per_edge": 4,
    "adversarial": 1.0,
    "negatives_power": 0.75,
    "triple_weights": "frequency",
}


def both(graph, folder, parts, cluster, **fields):
    """A job trained on one machine and on a cluster: both runs."""
    saved = graph.save(folder / "graph")
    one = trained(saved, folder / "one", **{**JOB, **TRIPLES, **fields})
    file = cluster_file(folder, partition=in_parts(saved, parts, folder), **cluster)
    return run_on(file, saved.path, folder / "run", **{**TRIPLES, **fields}), one


def assert_same(run, one, tolerance):
    """Losses, metrics, and what is said of the relations."""
    assert_same_losses(run.path, one.path, tolerance)
    assert run.facts["result"]["val"] == pytest.approx(one.val, abs=10 * tolerance)
    assert run.facts["result"]["test"] == pytest.approx(one.test, abs=10 * tolerance)
    assert facts_of(run.path)["labels"] == facts_of(one.path)["labels"]


def test_one_worker_has_the_same_bits(tmp_path):
    run, one = both(family_graph(), tmp_path, 2, {"machines": machines(1, 0)}, **SHARED)
    assert_same(run, one, 0)
    assert_same_state(newest_checkpoint(run.path)["learned"], newest_checkpoint(one.path)["learned"])


@pytest.mark.parametrize(
    "parts, workers, fields",
    [
        (2, 2, OWN),
        pytest.param(2, 2, ALL, marks=pytest.mark.long),
        pytest.param(4, 4, SHARED, marks=pytest.mark.long),
    ],
)
def test_workers_have_the_same_losses(tmp_path, parts, workers, fields):
    """Two node types, and batches of which a worker may have few triples."""
    run, one = both(shop_graph(), tmp_path, parts, {"machines": machines(*[1] * workers)}, **fields)
    assert_same(run, one, ROUNDING)


@pytest.mark.long
def test_an_rgcn_encodes_entities_at_their_owners(tmp_path):
    fields = {"model": "rgcn", "fanouts": [3, 3], "hidden": 8, "dropout": 0.2, "scorer": "distmult", **SHARED}
    fields["task"] = "knowledge-graph-completion"
    run, one = both(shop_graph(), tmp_path, 2, {"machines": machines(1, 1)}, **fields)
    assert_same(run, one, ROUNDING)


@pytest.mark.long
def test_a_worker_that_dies_changes_no_bit(tmp_path):
    graph = family_graph().save(tmp_path / "graph")
    cluster = cluster_file(tmp_path, machines=machines(1, 1), partition=in_parts(graph, 2, tmp_path))
    fields = {**TRIPLES, **SHARED, "epochs": 3}
    calm = run_on(cluster, graph.path, tmp_path / "calm", **fields)
    hit = disturbed_run("worker-1", 1, cluster, graph.path, tmp_path / "hit", **fields)
    assert hit.facts["result"]["test"] == calm.facts["result"]["test"]
    for part in ("learned", "tables"):
        assert_same_state(newest_checkpoint(hit.path)[part], newest_checkpoint(calm.path)[part])


@pytest.mark.long
def test_a_cluster_needs_triples_that_are_held_out(tmp_path):
    graph = family_graph(hold_out=False).save(tmp_path / "graph")
    cluster = cluster_file(tmp_path, machines=machines(1, 0), partition=in_parts(graph, 2, tmp_path))
    with refused("missing-data triples"):
        run_on(cluster, graph.path, tmp_path / "run", **{**TRIPLES, "task": "knowledge-graph-completion"})
