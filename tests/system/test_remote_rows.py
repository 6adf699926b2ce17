"""Rows of other machines from a cache: losses to the bit as without it, whatever draws the batches and rounds rows."""

import pytest

from cluster_runs import cluster_file, in_parts, losses_of, machines, result_of, run_on
from refusals import refused
from training_graphs import community_graph, typed_graph

JOBS = {
    "neighbour": {},
    "labor": {"sampler": "labor"},
    "ladies": {"sampler": "ladies", "layer_sizes": [30, 40]},
    "fastgcn": {"sampler": "fastgcn", "layer_sizes": [30, 40]},
    "saint-edge": {"sampler": "saint-edge", "saint_size": 40, "layers": 2},
    "cluster": {"sampler": "cluster", "clusters": 8, "clusters_per_batch": 2, "layers": 2},
    "typed": {"embedding": 8},
    "links": {"task": "link-prediction"},
}
OFTEN = {"neighbour": "int8", "ladies": "float16", "typed": "stored"}
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


def test_a_cache_is_refused_where_rows_are_read_once(place, tmp_path):
    graph = place[1]["one"]
    file = cluster_file(tmp_path, machines=machines(1, 1), partition=in_parts(graph, 2, place[0]), remote_cache_mb=1)
    with refused("unsupported-combination remote_cache_mb whole"):
        run_on(file, graph.path, tmp_path / "run", sampler="whole", epochs=1)
