"""Rows of other machines from caches and replicas: losses to the bit as without, whatever draws and rounds."""

import pytest

from cluster_runs import cluster_file, disturbed_run, in_parts, losses_of, machines, result_of, run_on
from refusals import refused
from training_graphs import community_graph, typed_graph

JOBS = {
    "neighbour": {},
    "labor": {"sampler": "labor"},
    "ladies": {"sampler": "ladies", "fanouts": [30, 40]},
    "fastgcn": {"sampler": "fastgcn", "fanouts": [30, 40]},
    "saint-edge": {"sampler": "saint-edge", "batch_size": 40, "layers": 2},
    "cluster": {"sampler": "cluster", "clusters": 8, "batch_size": 2, "layers": 2},
    "typed": {"embedding": 8},
    "links": {"task": "link-prediction"},
}
OFTEN = {"neighbour": "int8"}
"""Tried every time, with this wire type."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Graphs of one type and of several on disk, and where their parts are kept."""
    folder = tmp_path_factory.mktemp("remote")
    return folder, {"one": community_graph().save(folder / "one"), "typed": typed_graph().save(folder / "typed")}


def pair(place, folder, name, wire_type, **more):
    """A job's runs without and with what `more` adds to the cluster file."""
    graph = place[1]["typed" if name == "typed" else "one"]
    fields = {"epochs": 2, **JOBS[name]}
    runs = []
    for added in ({}, more):
        parts = in_parts(graph, 2, place[0])
        file = cluster_file(folder, machines=machines(1, 1), partition=parts, wire_type=wire_type, **added)
        runs.append(run_on(file, graph.path, folder / f"run-{len(runs)}", **fields).path)
    return runs


@pytest.mark.parametrize(
    "name, wire_type",
    [
        *OFTEN.items(),
        *(
            pytest.param(name, wire_type, marks=pytest.mark.long)
            for name in JOBS
            for wire_type in ("stored", "float16", "int8")
            if OFTEN.get(name) != wire_type
        ),
    ],
)
def test_a_cache_changes_no_bit(place, tmp_path, name, wire_type):
    plain, cached = pair(place, tmp_path, name, wire_type, remote_cache_mb=1)
    assert losses_of(plain) == losses_of(cached)
    without, having = result_of(plain), result_of(cached)
    workers = [task["remote_cache"] for task in having["tasks"] if task["kind"] == "worker"]
    assert len(workers) == 2 and all(each["hits"] > 0 and each["misses"] > 0 for each in workers)
    assert not any("remote_cache" in task for task in [*without["tasks"], *having["tasks"][:2]])
    saved = sum(each["bytes_saved"] for each in workers)
    assert having["bytes_received"] == without["bytes_received"] - saved
    uses = without["batch_bytes"]
    assert uses["lists"] > 0 and uses["rows"] > having["batch_bytes"]["rows"]


@pytest.mark.parametrize("cache", [0, pytest.param(1, marks=pytest.mark.long)])
def test_rows_rounded_at_random_are_the_same_after_a_kill(place, tmp_path, cache):
    graph = place[1]["one"]
    parts = {"machines": machines(1, 1), "partition": in_parts(graph, 2, place[0]), "remote_cache_mb": cache}
    file = cluster_file(tmp_path, **parts, wire_type="int8", wire_rounding="stochastic")
    whole = run_on(file, graph.path, tmp_path / "whole", epochs=2)
    killed = disturbed_run("worker-1", 1, file, graph.path, tmp_path / "killed", epochs=2)
    assert [each["task"] for each in result_of(killed.path)["recoveries"]] == ["worker-1"]
    assert losses_of(whole.path) == losses_of(killed.path)
    nearest = cluster_file(tmp_path, **parts, wire_type="int8")
    assert losses_of(run_on(nearest, graph.path, tmp_path / "nearest", epochs=1).path) != losses_of(whole.path)[:1]


def test_a_cache_is_refused_where_rows_are_read_once(place, tmp_path):
    graph = place[1]["one"]
    file = cluster_file(tmp_path, machines=machines(1, 1), partition=in_parts(graph, 2, place[0]), remote_cache_mb=1)
    with refused("unsupported-combination remote_cache_mb whole"):
        run_on(file, graph.path, tmp_path / "run", sampler="whole", epochs=1)


REPLICAS = [
    {"part": 0, "machine": "m1"},
    {"part": 0, "machine": "m2", "rows": 0.3},
    {"part": 1, "machine": "m0", "rows": 20},
]


def replicated(place, folder, name, run, replicas=REPLICAS, **more):
    """The cluster file of three machines with replicas, and the graph."""
    graph = place[1]["typed" if name == "typed" else "one"]
    spread = {"machines": machines(1, 1, 1), "partition": in_parts(graph, 3, place[0])}
    return cluster_file(folder, **spread, replicas=replicas, **more), graph.path, folder / run


@pytest.fixture(scope="module")
def unreplicated(place, tmp_path_factory):
    """The losses of runs without replicas."""
    folder, found = tmp_path_factory.mktemp("plain"), {}

    def losses(name, wire_type):
        if (name, wire_type) not in found:
            at = f"{name}-{wire_type}"
            run = run_on(*replicated(place, folder, name, at, [], wire_type=wire_type), epochs=2, **JOBS[name])
            found[name, wire_type] = losses_of(run.path)
        return found[name, wire_type]

    return losses


@pytest.mark.parametrize(
    "name, wire_type, paths",
    [
        ("neighbour", "int8", "auto"),
        pytest.param("neighbour", "int8", ["replica"], marks=pytest.mark.long),
        pytest.param("neighbour", "int8", ["owner"], marks=pytest.mark.long),
        pytest.param("typed", "stored", "auto", marks=pytest.mark.long),
        pytest.param("ladies", "float16", "auto", marks=pytest.mark.long),
    ],
)
def test_replicas_change_no_bit(place, unreplicated, tmp_path, name, wire_type, paths):
    cache = {"remote_cache_mb": 1} if name == "ladies" else {}
    given = replicated(place, tmp_path, name, "run", wire_type=wire_type, feature_paths=paths, **cache)
    run = run_on(*given, epochs=2, **JOBS[name])
    assert losses_of(run.path) == unreplicated(name, wire_type)
    found = {task["id"]: task.get("feature_paths") for task in result_of(run.path)["tasks"]}
    if paths == ["owner"]:
        assert not any(found.values())
        return
    # Machine 1 has all rows of part 0 beside it, and machine 2 some of them.
    assert found["worker-1"]["here"]["rows"] > 0 and found["worker-1"]["here"]["bytes"] == 0
    assert found["worker-2"]["here"]["rows"] > 0 and found["worker-0"]["owner"]["rows"] > 0
    if paths == ["replica"]:
        assert found["worker-2"]["replica"]["rows"] > 0


def test_a_killed_store_with_replicas_leaves_no_trace(place, unreplicated, tmp_path):
    """The owner of what is replicated, which has a replica of another part, too."""
    given = replicated(place, tmp_path, "neighbour", "run", wire_type="int8")
    run = disturbed_run("store-m0", 1, *given, epochs=2)
    assert [each["task"] for each in result_of(run.path)["recoveries"]] == ["store-m0"]
    assert losses_of(run.path) == unreplicated("neighbour", "int8")


@pytest.mark.parametrize(
    "replica, said",
    [
        ({"part": 0, "machine": "m0"}, "invalid-value replicas[0] m0"),
        ({"part": 7, "machine": "m0"}, "invalid-value replicas[0] 0..2"),
    ],
)
def test_replicas_that_a_layout_cannot_have(place, tmp_path, replica, said):
    with refused(said):
        run_on(*replicated(place, tmp_path, "neighbour", "run", [replica]), epochs=1)
    assert not (tmp_path / "run").exists()
