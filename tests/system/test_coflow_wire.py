"""The order in which a cluster's messages leave, and the marks they bear, change no bit of what is learned."""

import pytest

from cluster_runs import assert_same_losses, cluster_file, in_parts, machines, run_on
from training_graphs import assert_same_state, newest_checkpoint, typed_graph

COFLOW = {"security": "token", "egress": "coflow", "dscp_classes": [46, 34, 10]}
SHORT = {"epochs": 1, "batch_size": 60}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A graph with learnable rows and features, in two parts."""
    folder = tmp_path_factory.mktemp("coflow")
    graph = typed_graph().save(folder / "graph")
    return folder, graph


def trained(place, run, wire):
    folder, graph = place
    spread = {"machines": machines(1, 1), "partition": in_parts(graph, 2, folder)}
    cluster = cluster_file(folder, **spread, reduce="servers", servers=1, wire=wire)
    return run_on(cluster, graph.path, run, **SHORT)


def test_coflows_in_strict_order_learn_what_fair_flows_learn(place, tmp_path):
    fair = trained(place, tmp_path / "fair", {"security": "token"})
    strict = trained(place, tmp_path / "coflow", COFLOW)
    assert_same_losses(strict.path, fair.path, 0)
    assert_same_state(newest_checkpoint(strict.path), newest_checkpoint(fair.path))
    found = {each["kind"]: each for each in strict.facts["result"]["coflows"]}
    assert set(found) == {"batch", "embeddings", "gradients"}
    steps = newest_checkpoint(strict.path)["standing"]["step"]
    # Both workers take part in every step.
    assert found["gradients"]["count"] == found["embeddings"]["count"] == 2 * steps
    assert found["batch"]["count"] >= 2 * steps
    for each in found.values():
        assert each["bytes"] > 0
        assert 0 < each["mean_cct_s"] < 60
    of_workers = [task["coflows"] for task in strict.facts["result"]["tasks"] if task["kind"] == "worker"]
    assert [[line["kind"] for line in lines] for lines in of_workers] == [["batch", "embeddings", "gradients"]] * 2
