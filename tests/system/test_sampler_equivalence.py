"""Samplers that draw a batch as a whole, on one machine and on clusters: the same batches, the same losses."""

import numpy as np
import pytest

from cluster_runs import JOB, assert_same_losses, cluster_file, disturbed_run, in_parts, machines, run_on
from training_graphs import assert_same_state, community_graph, newest_checkpoint, trained

ROUNDING = 1e-4
"""Losses of a few steps: sums of 32-bit numbers in another order."""
LAYERS = {"fanouts": [30, 40], "epochs": 2}
SAINT = {"batch_size": 40, "epochs": 2, "layers": 2}
JOBS = {
    "fastgcn": LAYERS,
    "ladies": LAYERS,
    "saint-vertex": SAINT,
    "saint-edge": {**SAINT, "model": "gcn"},
    "saint-walk": {**SAINT, "walk_length": 2},
    "cluster": {"clusters": 8, "batch_size": 2, "epochs": 2, "layers": 2},
}
OFTEN = ("ladies", "cluster")
"""Tried every time; the norms of the next test see batches of saint-edge."""
WAYS = {
    "fastgcn": {"samplers": 1},
    "ladies": {"reduce": "servers"},
    "saint-vertex": {},
    "saint-edge": {"samplers": 2},
    "saint-walk": {"reduce": "servers", "samplers": 1},
    "cluster": {"samplers": 1},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A graph on disk, and where runs on one machine are kept."""
    folder = tmp_path_factory.mktemp("samplers")
    return folder, community_graph().save(folder / "graph")


def on_one_machine(place, sampler):
    """The job on one machine."""
    folder, graph = place
    if not (folder / sampler).exists():
        trained(graph, folder / sampler, **{**JOB, **JOBS[sampler], "sampler": sampler})
    return folder / sampler


def on_cluster(place, folder, sampler, spread, parts=2, **cluster):
    """The same on a cluster."""
    file = cluster_file(folder, machines=spread, partition=in_parts(place[1], parts, place[0]), **cluster)
    return run_on(file, place[1].path, folder / "run", sampler=sampler, **JOBS[sampler]).path


@pytest.mark.parametrize(
    "sampler", [pytest.param(each, marks=[pytest.mark.long] * (each not in OFTEN)) for each in JOBS]
)
def test_two_workers_lose_as_one(place, tmp_path, sampler):
    run = on_cluster(place, tmp_path, sampler, machines(1, 1), **WAYS[sampler])
    assert_same_losses(run, on_one_machine(place, sampler), ROUNDING)


@pytest.mark.parametrize(
    "sampler", ["saint-edge", *(pytest.param(each, marks=pytest.mark.long) for each in ("ladies", "cluster"))]
)
def test_norms_see_every_row_of_the_whole_batch(place, tmp_path, sampler):
    """Also where another task has drawn it."""
    # What a norm takes out again has a gradient of rounding alone, which Adam would make a step of.
    fields = {**JOBS[sampler], "sampler": sampler, "norm": "batch", "optimiser": "SGD", "lr": 0.05}
    trained(place[1], tmp_path / "one", **{**JOB, **fields})
    file = cluster_file(tmp_path, machines=machines(1, 1), partition=in_parts(place[1], 2, place[0]), samplers=1)
    run = run_on(file, place[1].path, tmp_path / "run", **fields)
    assert_same_losses(run.path, tmp_path / "one", ROUNDING)


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["saint-edge", "cluster"])
def test_embeddings_of_vertices_without_a_gradient_move_too(tmp_path, sampler):
    """One layer, few training vertices: most of a subgraph is read by no loss vertex."""
    graph = community_graph()
    graph.nodes["node"].fields.pop("x")
    graph = graph.save(tmp_path / "graph")
    fields = {**JOBS[sampler], "sampler": sampler, "model": "sage", "batch_size": 20, "layers": 1, "epochs": 3}
    fields |= {"split": "per-class", "per_class": [2, 5], "embedding": 8, "optimiser": "SGD", "lr": 0.05}
    trained(graph, tmp_path / "one", **{**JOB, **fields})
    file = cluster_file(tmp_path, machines=machines(1, 1), partition=in_parts(graph, 2, tmp_path))
    run = run_on(file, graph.path, tmp_path / "run", **fields)
    assert_same_losses(run.path, tmp_path / "one", ROUNDING)
    ours, theirs = (newest_checkpoint(path)["tables"]["node"]["rows"] for path in (run.path, tmp_path / "one"))
    np.testing.assert_allclose(ours, theirs, atol=ROUNDING)


@pytest.mark.long
@pytest.mark.parametrize("samplers", [0, 1])
@pytest.mark.parametrize("sampler", JOBS)
def test_one_worker_has_the_same_bits_however_the_graph_is_cut(place, tmp_path, sampler, samplers):
    one = on_one_machine(place, sampler)
    run = on_cluster(place, tmp_path, sampler, machines(1, 0, 0), parts=3, samplers=samplers)
    assert_same_losses(run, one, 0)
    assert_same_state(newest_checkpoint(run)["learned"], newest_checkpoint(one)["learned"])


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["ladies", "saint-edge", "cluster"])
def test_tasks_that_draw_change_no_bit(place, tmp_path, sampler):
    """Three workers of different speed draw themselves, or have two tasks each that do."""
    spread = machines(1, 0, 2)
    spread[0]["speed"] = 2.0
    runs = []
    for samplers in (0, 2):
        folder = tmp_path / str(samplers)
        folder.mkdir()
        runs.append(on_cluster(place, folder, sampler, spread, parts=4, samplers=samplers))
    assert_same_losses(*runs, 0)
    assert_same_state(*(newest_checkpoint(run)["learned"] for run in runs))
    assert_same_losses(runs[0], on_one_machine(place, sampler), ROUNDING)


@pytest.mark.long
@pytest.mark.parametrize(
    "sampler, victim",
    [("ladies", "worker-1"), ("saint-walk", "sampler-0-0"), ("cluster", "worker-0"), ("cluster", "store-m1")],
)
def test_a_task_that_dies_changes_no_bit(place, tmp_path, sampler, victim):
    """The first worker had found the clusters, and finds them again in the run's folder."""
    fields = {**JOBS[sampler], "sampler": sampler, "epochs": 3}
    parts = in_parts(place[1], 2, place[0])
    cluster = cluster_file(tmp_path, machines=machines(1, 1), partition=parts, samplers=1)
    calm = run_on(cluster, place[1].path, tmp_path / "calm", **fields)
    hit = disturbed_run(victim, 1, cluster, place[1].path, tmp_path / "hit", **fields)
    assert [each["task"] for each in hit.facts["result"]["recoveries"]] == [victim]
    assert hit.facts["result"]["test"] == calm.facts["result"]["test"]
    assert_same_losses(hit.path, calm.path, 0)
    assert_same_state(newest_checkpoint(hit.path)["learned"], newest_checkpoint(calm.path)["learned"])
    assert (hit.path / "clusters.npy").exists() == (sampler == "cluster")
