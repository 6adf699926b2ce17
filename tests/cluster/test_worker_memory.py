"""What a worker of a cut graph keeps and takes grows with its batches and splits, not with the graph's vertices."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cluster_runs import running_worker
from penstock import EdgeSet, Graph, NodeSet
from penstock.cluster.worker import cut_graph, edge_tasks
from penstock.cluster.worker.cut_graph import Parts, open_cut_graph
from penstock.cluster.worker.layerwise import PartedPlan
from penstock.cluster.worker.session import make_parted_session
from penstock.errors import PenstockError
from penstock.graph import arrays
from penstock.graph import data as graph_data
from penstock.graph.csr import build_lists
from penstock.partition import Cut, cut, owners
from penstock.pipeline.batch_rows import as_tensors
from penstock.pipeline.schedule import Schedule
from penstock.sampling.links import known
from penstock.sampling.parts import graph as parted_graphs
from penstock.sampling.parts import relation
from penstock.sampling.triples import batcher as triple_batches
from penstock.train.dataset.labels import SplitValues, different_labels, labelled_vertices
from penstock.train.job import make_job
from refusals import refused

SMALL, LARGE = 300_000, 2_000_000
LINKED = 3_000
"""Vertices that have edges, in both graphs: batches are alike."""
MOST = 0.5
"""Bytes for each vertex by which memory may grow, as peaks differ by messages under way: an array of all vertices takes
1 to 8.
"""


def made_partition(folder, count, labels=None, parts=2, pairs=0):
    """Parts of a graph in which few vertices have edges and labels, and are anywhere in it; for validation and test
    so many `pairs` are held out."""
    rng = np.random.default_rng(0)
    linked = np.sort(rng.choice(count, LINKED, replace=False))
    ends = linked[rng.integers(0, LINKED, (2, 5 * LINKED))]
    indptr, indices, _ = build_lists(*ends, count, count)
    held_out = {name: linked[rng.integers(0, LINKED, (pairs, 2))] for name in ("val", "test") if pairs}
    edges = EdgeSet(indptr, indices, {"t": rng.random(len(indices))}, held_out)
    y = np.full(count, -1)
    y[linked] = rng.integers(0, 4, LINKED)
    x = np.zeros((count, 2), np.float32)
    x[linked] = rng.random((LINKED, 2))
    splits = {"train": linked[::4], "val": linked[1::4], "test": linked[2::8]}
    fields = {"x": x, "y": y if labels is None else labels(y), "when": rng.random(count)}
    graph = Graph({"node": NodeSet(count, fields, splits)}, {("node", "to", "node"): edges}, f"of {count}")
    return cut(graph, Cut(parts, method="random"), folder), graph


def use(member, job):
    """A session from its beginning, some of its batches with their losses, and the neighbourhoods of a validation."""
    parts = Parts(member)
    session, group = make_parted_session(parts, job)
    schedule = Schedule(session.task.items, session.task.batch_size, job.draw_seed)
    losses = []
    for planned, _ in zip(schedule.from_position(), range(3), strict=False):
        batch = session.task.sample(group.share(planned))
        session.task.label(batch)
        with torch.no_grad():
            batch.labels = as_tensors(batch.labels)
            out = session.model(batch.blocks, session.inputs.pull("node", batch.vertices["node"]))
            losses.append(session.task.loss(out, batch).item())
    plan = PartedPlan(session, parts, SimpleNamespace(rank=0, world=1), "validation")
    for _ in plan.neighbourhoods("node", session.graph.nodes["node"].splits["val"]):
        pass
    return session, losses


def traced_peak(partition, job, folder):
    """The bytes of arrays and objects that a session keeps, and the most that it takes, without mapped files."""
    with running_worker(partition, job, folder) as member:
        tracemalloc.start()
        try:
            session, _ = use(member, job)
            kept, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        del session
        return kept, most


LINKS = {"task": "link-prediction", "held_out": [0.05, 0.1], "rank_against": 10}
TRIPLES = {"task": "knowledge-graph-completion"}
TASKS = {
    "neighbour": {},
    "labor": {"sampler": "labor"},
    "times of edges": {"time": "t", "seed_time": "when"},
    "times of vertices": {"time": "node:when"},
    "ages": {"time": "node:when", "time_width": 4, "model": "gatv2"},
    "links": LINKS,
    "joint": {**LINKS, "negatives": "joint", "filtered": True},
    "triples": TRIPLES,
    "shared": {**TRIPLES, "negatives": "joint", "negatives_per_edge": 16},
}


def job_for(partition, fields):
    options = {"batch_size": 64, "hidden": 8, "fanouts": [3, 3], "model": "sage", "threads": 1, **fields}
    return make_job({"graph": str(partition.path), **options})


def lower_limits(monkeypatch):
    """Blocks, and what is kept up to a limit that does not depend on the graph, are small, so that they hide nothing.
    What would be in memory in a small graph is then in files."""
    for place, name, size in (
        (cut_graph, "_COLUMN", 1 << 14),
        (edge_tasks, "_NUMBERED", 1 << 14),
        (graph_data, "_LISTS", 1 << 14),
        (owners, "_WINDOW", 1 << 14),
        (relation, "_PIECE", 1 << 14),
        (parted_graphs, "DIRECT_LIMIT_OF_PARTS", 1 << 10),
        (parted_graphs, "KEPT_TIMES", 1 << 8),
        (arrays, "NUMBERS_IN_MEMORY", 1 << 10),
        (known, "NUMBERS_IN_MEMORY", 1 << 10),
        (triple_batches, "_DIRECT", 1 << 6),
    ):
        monkeypatch.setattr(place, name, size)


@pytest.fixture(scope="module")
def partitions(tmp_path_factory):
    """Partitions of graphs by the count of their vertices."""
    counts = (SMALL, SMALL + 1, LARGE)
    return {count: made_partition(tmp_path_factory.mktemp("parts") / str(count), count)[0] for count in counts}


@pytest.fixture(scope="module")
def with_pairs(tmp_path_factory):
    """The same with pairs that are held out."""
    counts = (SMALL, SMALL + 1, LARGE)
    folder = tmp_path_factory.mktemp("with-pairs")
    return {count: made_partition(folder / str(count), count, pairs=100)[0] for count in counts}


@pytest.mark.parametrize("task", ["neighbour", "labor", "times of edges", "times of vertices", "links", "triples"])
def test_no_array_of_all_vertices(request, tmp_path, monkeypatch, task):
    lower_limits(monkeypatch)
    found, partitions = {}, request.getfixturevalue("with_pairs" if task == "triples" else "partitions")
    for count, partition in partitions.items():
        # The first one is for what only a process's first session takes.
        found[count] = traced_peak(partition, job_for(partition, TASKS[task]), tmp_path / f"run-{count}")
    for before, after in zip(found[SMALL + 1], found[LARGE], strict=True):
        assert after - before < MOST * (LARGE - SMALL), found


@pytest.fixture(scope="module")
def cuts(tmp_path_factory):
    """One graph, with and without pairs that are held out, in 1, 2 and 4 parts."""
    folder = tmp_path_factory.mktemp("cuts")
    return {
        (parts, pairs): made_partition(folder / f"{parts}-{pairs}", 20_000, parts=parts, pairs=pairs)[0]
        for parts in (1, 2, 4)
        for pairs in (0, 100)
    }


@pytest.mark.parametrize("task", TASKS)
def test_losses_do_not_depend_on_parts_or_on_what_is_in_memory(cuts, tmp_path, task):
    found = {}
    for parts, low in ((1, False), (2, False), (1, True), (2, True), (4, True)):
        partition = cuts[parts, 100 if "triples" in task or task == "shared" else 0]
        job = job_for(partition, TASKS[task])
        with pytest.MonkeyPatch.context() as monkeypatch:
            if low:
                lower_limits(monkeypatch)
            with running_worker(partition, job, tmp_path / f"{parts}-{low}", alone=True) as member:
                _, found[parts, low] = use(member, job)
    first, *others = found.values()
    assert len(first) == 3 and all(other == first for other in others), found


@pytest.mark.parametrize(
    "labels",
    [
        lambda y: y,
        lambda y: y.astype(np.int8),
        lambda y: y.astype(np.float32),
        lambda y: np.where(y < 0, 0, y)[:, None] == np.arange(4),
        lambda y: (y + 0.5).astype(np.float32)[:, None],
    ],
    ids=["int64", "int8", "float32", "several", "numbers"],
)
def test_labels_of_the_splits_are_those_of_the_graph(tmp_path, labels):
    partition, graph = made_partition(tmp_path / "parts", 40_000, labels)
    job = make_job({"graph": str(partition.path), "batch_size": 64, "fanouts": [3, 3]})
    (nodes,) = graph.nodes.values()
    with running_worker(partition, job, tmp_path / "run") as member:
        parts = Parts(member)
        here = open_cut_graph(parts, job).nodes["node"].fields["y"]
        whole = open_cut_graph(parts, job.model_copy(update={"split": "ratio"})).nodes["node"].fields["y"]
    np.testing.assert_array_equal(whole, nodes.fields["y"])
    assert isinstance(here, SplitValues) and len(here) == nodes.count and here.dtype == whole.dtype
    for rows in nodes.splits.values():
        expected = nodes.fields["y"][rows]
        np.testing.assert_array_equal(here[rows], expected[:, 0] if expected.shape[1:] == (1,) else expected)
    with refused("not-available values of its splits' vertices alone"):
        here[np.arange(nodes.count)]
    with refused("not-available values of its splits' vertices alone"):
        np.asarray(here)


@pytest.mark.parametrize(
    ("first", "blocks", "expected"),
    [
        ([], [[3, -1, 3], [0, 2]], [-1, 0, 2, 3]),
        ([], [[-100, 90], [7]], [-100, 7, 90]),
        ([0.0, np.nan], [[0.0, np.nan], [2.0, np.nan]], [0.0, 2.0, np.nan]),
        # Quantities by the first rows: others are not read, as regression needs none of them.
        ([0.5, 1.0], [[7.5]], [0.5, 1.0]),
        # All labels are needed, for a sentence about them: a class that is too large, and a later quantity.
        ([], [[1, 2], [10**6]], None),
        ([1.0], [[1.0], [0.5]], None),
        ([np.nan], [[np.nan]], None),
    ],
)
def test_different_labels(first, blocks, expected):
    kind = np.float32 if first else np.int8 if np.max(np.abs(np.concatenate(blocks))) < 128 else np.int64
    given = (np.array(block, kind) for block in blocks)
    found = different_labels(
        np.array(first, kind), given, make_job({"graph": "g"}).model_copy(update={"max_classes": 1000})
    )
    if expected is None:
        assert found is None
    else:
        np.testing.assert_array_equal(found, np.array(expected, kind))
        assert found.dtype == kind


def test_more_different_labels_than_are_kept():
    job = make_job({"graph": "g"}).model_copy(update={"max_classes": 10**7})
    assert different_labels(np.empty(0, np.int64), iter([np.arange(70_000)]), job) is None
    # Texts are refused with all of them at hand.
    assert different_labels(np.array(["a"]), iter([np.array(["a", "b"])]), job) is None


def test_labels_that_are_wrong_are_refused_as_on_one_machine(tmp_path):
    """By a sentence that names a row, for which all labels are read."""
    partition, graph = made_partition(tmp_path / "parts", 40_000, lambda y: np.where(y == 3, 10**6, y))
    job = make_job({"graph": str(partition.path), "batch_size": 64, "fanouts": [3, 3]})
    row = int(graph.nodes["node"].fields["y"].argmax())
    with refused(f"too-large 'node' 1000000 {row}"):
        labelled_vertices(graph, job, "node-classification")
    with running_worker(partition, job, tmp_path / "run") as member, refused(f"too-large 'node' 1000000 {row}"):
        make_parted_session(Parts(member), job)


def test_times_without_a_number_are_named_by_their_owners(tmp_path):
    """By the vertex's original number; the owners count them, and no times are read for it."""
    partition, graph = made_partition(tmp_path / "parts", 20_000)
    when = graph.nodes["node"].fields["when"]
    lacking = partition.original()[[11_000, 15_000]]
    when[lacking] = np.nan
    partition = cut(graph, Cut(2, method="random"), tmp_path / "again")
    first = int(partition.original()[partition.new_ids(lacking).min()])
    with running_worker(partition, job_for(partition, {"time": "node:when"}), tmp_path / "run") as member:
        parts = Parts(member)
        with refused(f"not-finite 'node/when' 2 {first}"):
            parts.vertex_times("node:when")
        with refused("wrong-type 'node/x'"):
            parts.vertex_times("node:x")
        assert list(map(len, parts.different_labels("node", "y"))) == [5, 5]
        with pytest.raises(PenstockError, match="no column of numbers 'x'"):
            list(parts.different_labels("node", "x"))
