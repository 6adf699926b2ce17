"""All workers of a cluster begin to shuffle after the same epoch, killed and resumed or not."""

import pytest

from cluster_runs import JOB, assert_same_losses, cluster_file, disturbed_run, in_parts, machines, result_of, run_on
from training_graphs import assert_same_state, community_graph, newest_checkpoint, trained

pytestmark = pytest.mark.long
ELBOW = {"shuffle": "adaptive", "epochs": 12, "lr": 0.05, "dropout": 0.0}


@pytest.mark.parametrize(
    "fields",
    [{}, {"reuse_batches": True}, {"groups": 5}, {"sampler": "cluster", "clusters": 12, "layers": 2}],
)
def test_workers_agree_on_the_switch_and_a_killed_one_rejoins(tmp_path, fields):
    graph, fields = community_graph().save(tmp_path / "graph"), {**ELBOW, **fields}
    one = trained(graph, tmp_path / "one", **{**JOB, **fields})
    begun = one.result["shuffled_from"]
    assert begun is not None
    way = {"machines": machines(1, 1), "partition": in_parts(graph, 2, tmp_path)}
    cluster = cluster_file(tmp_path, **way, reduction="wire")
    pair = run_on(cluster, graph.path, tmp_path / "pair", **fields)
    assert result_of(pair.path)["shuffled_from"] == begun
    assert_same_losses(pair.path, one.path, 1e-3)
    # Its last report before it is killed is that of the epoch after which all workers begin to shuffle.
    run = disturbed_run("worker-1", begun - 1, cluster, graph.path, tmp_path / "killed", **fields)
    assert [each["task"] for each in result_of(run.path)["recoveries"]] == ["worker-1"]
    assert result_of(run.path)["shuffled_from"] == begun
    assert_same_losses(run.path, pair.path, 0)
    assert_same_state(newest_checkpoint(run.path)["learned"], newest_checkpoint(pair.path)["learned"])
