"""Arrays are checked before kernels index with them: once for each folder, again when a file was changed."""

import json
import os

import numpy as np
import pytest

import penstock as ps
from penstock import Cut, EdgeSet, Graph, NodeSet, PenstockError, cut, open_partition, stitch
from penstock.graph import facts, integrity
from penstock.graph import facts as record
from penstock.graph.ids import StringIds
from penstock.graph.inspect import inspect_graph
from penstock.graph.integrity import check_graph, first_fall, first_outside, first_repeat, non_finite_rows, value_range
from penstock.graph.tables.export import export_tables
from penstock.sampling import NeighbourSampler
from penstock.sampling.labor import Labor
from penstock.sampling.links import find_reverse, split_edges
from refusals import refused

KIND = ("node", "to", "node")
LISTS = "edges/node__to__node"


def small_graph(count=40, degree=5):
    rng = np.random.default_rng(0)
    indices = np.sort(rng.integers(0, count, (count, degree), np.int32), 1).ravel()
    edges = EdgeSet(np.arange(0, count * degree + 1, degree), indices, {"w": rng.random(count * degree, np.float32)})
    edges.held_out["test"] = np.array([[0, 1], [2, 3]])
    nodes = NodeSet(
        count,
        {"x": rng.random((count, 3), np.float32), "y": rng.integers(0, 3, count)},
        {"train": np.arange(20), "val": np.arange(20, 30), "test": np.arange(30, 40)},
        StringIds.of([f"v{number}" for number in range(count)]),
        {"y": ["a", "b", "c"]},
    )
    return Graph({"node": nodes}, {KIND: edges}, "small")


def change(path, place, value):
    """Put one wrong number into a file."""
    values = np.load(path)
    values[place] = value
    np.save(path, values)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    small_graph().save(tmp_path / "graph")
    return tmp_path / "graph"


@pytest.mark.parametrize(
    "file, place, value, said",
    [
        ("indices", 7, 40, "holds 40 at position 7, where the vertices 'node' are 0 to 39"),
        ("indices", 199, 10**6, "holds 1000000 at position 199"),
        ("indices", 0, -4, "holds -4 at position 0"),
        ("indptr", 9, 3, "falls from 40 to 3 at position 9"),
        ("indptr", 0, 1, "starts with 1 at position 0"),
        ("indptr", 40, 201, "has 200 edges where its offsets say 201"),
        ("held_out.test", (1, 1), 41, "holds 41 at position 1, 1"),
        ("../../nodes/node/split.val", 3, 40, "holds 40 at position 3"),
        ("../../nodes/node/split.train", 0, -1, "holds -1 at position 0"),
        ("../../nodes/node/field.y", 5, 3, "holds the code 3 at position 5, and there are 3 categories"),
        ("../../nodes/node/ids.offsets", 4, 9000, "falls from 9000 to"),
        ("../../nodes/node/ids.bytes", 5, 255, "the id of vertex 2 is not valid UTF-8"),
    ],
)
def test_a_wrong_number_is_named(folder, file, place, value, said):
    path = (folder / LISTS / f"{file}.npy").resolve()
    change(path, place, value)
    with pytest.raises(PenstockError) as refused:
        check_graph(ps.load(folder))
    assert said in str(refused.value)
    assert path.name in str(refused.value) or "offsets say" in said


def test_every_entry_checks_first(folder, tmp_path):
    """Opening stays free of passes over the arrays; whoever hands them to kernels checks."""
    change(folder / LISTS / "indices.npy", 7, 40)
    for use in (
        lambda graph: NeighbourSampler(graph, [2]),
        lambda graph: Labor(graph, [2]),
        inspect_graph,
        lambda graph: export_tables(graph, tmp_path / "tables"),
        lambda graph: cut(graph, Cut(2, method="chunk"), tmp_path / "parts"),
        lambda graph: split_edges(graph, KIND),
        lambda graph: find_reverse(graph, KIND),
    ):
        with refused("damaged-file 40 7"):
            use(ps.load(folder))
    assert not (tmp_path / "tables").exists() and not (tmp_path / "parts").exists()


def test_graphs_in_memory_are_checked(folder):
    graph = small_graph()
    check_graph(graph)
    graph.edges[KIND].indices = graph.edges[KIND].indices + 1
    with refused("damaged-file node__to__node 40"):
        NeighbourSampler(graph, [2])
    mapped = ps.load(folder)
    check_graph(mapped)
    mapped.nodes["node"].splits["train"] = np.array([50])
    with refused("damaged-file split.train node 50"):
        check_graph(mapped)


def test_unchecked_is_not_read(folder, monkeypatch):
    monkeypatch.setattr(integrity, "map_blocks", None)
    for opened in (ps.load(folder, unchecked=True), Graph.open(folder, unchecked=True)):
        opened.edges[KIND].indptr = np.full(41, -1)
        check_graph(opened)


@pytest.fixture
def counted(monkeypatch):
    """Every array is large, and how often one is read is counted."""
    read = []
    monkeypatch.setattr(facts, "RECORDED", 0)
    from penstock.graph import integrity as module

    monkeypatch.setattr(module, "value_range", lambda values: read.append(len(values)) or value_range(values))
    return read


def test_a_folder_is_read_once_and_again_when_changed(folder, counted):
    check_graph(ps.load(folder))
    assert counted
    counted.clear()
    check_graph(ps.load(folder))
    assert counted == []
    path = folder / LISTS / "indices.npy"
    before = path.stat()
    change(path, 199, 40)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with refused("damaged-file 40 199"):
        check_graph(ps.load(folder))


def test_facts_do_not_depend_on_the_document(folder, counted):
    """What is remembered is the range of the numbers, not that it was right for the counts of that time."""
    check_graph(ps.load(folder))
    small_graph(39).save(folder.parent / "less")
    document = json.loads((folder.parent / "less" / "graph.json").read_text())
    assert document["node_types"]["node"]["count"] == 39
    for name in ("indptr", "indices", "field.w"):
        (folder.parent / "less" / LISTS / f"{name}.npy").unlink()
        os.link(folder / LISTS / f"{name}.npy", folder.parent / "less" / LISTS / f"{name}.npy")
    with pytest.raises(PenstockError):
        check_graph(ps.load(folder.parent / "less"))


def test_a_record_that_is_damaged_or_of_another_folder_is_made_again(folder, counted):
    check_graph(ps.load(folder))
    places = list((folder.parent / "cache" / "checked").iterdir())
    assert places
    for text in ("{", "[]", json.dumps({"format": record.FORMAT, "version": 1, "folder": "/elsewhere", "files": {}})):
        for place in places:
            place.write_text(text)
        counted.clear()
        check_graph(ps.load(folder))
        assert counted
    counted.clear()
    check_graph(ps.load(folder))
    assert counted == []


def test_no_cache_and_no_write_permission_are_no_errors(folder, counted, monkeypatch):
    for path in (folder / LISTS, folder):
        path.chmod(0o555)
    (folder.parent / "file").write_text("")
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder.parent / "file" / "cache"))
    try:
        for _ in range(2):
            counted.clear()
            check_graph(ps.load(folder))
            assert counted
    finally:
        for path in (folder, folder / LISTS):
            path.chmod(0o755)


def test_records_of_folders_that_are_gone_are_deleted(folder, counted):
    check_graph(ps.load(folder))
    checked = folder.parent / "cache" / "checked"
    before = set(checked.iterdir())
    folder.rename(folder.parent / "moved")
    check_graph(ps.load(folder.parent / "moved"))
    assert before.isdisjoint(checked.iterdir()) and list(checked.iterdir())


def test_blocks_give_what_one_pass_gives(monkeypatch):
    monkeypatch.setattr(integrity, "_BLOCK", 64)
    monkeypatch.setattr(integrity, "_SEGMENT", 256)
    rng = np.random.default_rng(1)
    for size in (0, 1, 7, 8, 500):
        values = rng.integers(-50, 50, size)
        assert value_range(values) == ([values.min(), values.max()] if size else [0, -1])
        outside = np.flatnonzero((values < -40) | (values > 40))
        assert first_outside(values, -40, 40) == (outside[0] if len(outside) else -1)
        falls = np.flatnonzero(np.diff(values) < 0)
        assert first_fall(values) == (falls[0] + 1 if len(falls) else -1)
        order = rng.permutation(size)
        assert first_repeat(order) == -1
        if size > 7:
            order[-2] = order[3]
            assert first_repeat(order) == size - 2
        rows = rng.random((size, 3))
        bad = rng.choice(size, size // 5, replace=False)
        rows[bad, 1] = [np.nan, np.inf, 1e300][size % 3]
        assert non_finite_rows(rows) == [len(bad), bad.min() if len(bad) else -1]


def test_lists_must_ascend_where_edges_are_looked_up(folder, tmp_path):
    graph = small_graph()
    indices = graph.edges[KIND].indices.copy()
    indices[:5] = indices[:5][::-1]
    graph.edges[KIND].indices = indices
    NeighbourSampler(graph, [2])
    for use in (lambda: split_edges(graph, KIND), lambda: cut(graph, Cut(2, method="chunk"), tmp_path / "parts")):
        with refused("damaged-file 0"):
            use()


def test_the_first_list_that_does_not_ascend(monkeypatch):
    monkeypatch.setattr(integrity, "_ROWS", 3)
    rng = np.random.default_rng(2)
    for _ in range(50):
        lists = [np.sort(rng.integers(0, 12, rng.integers(0, 4))) for _ in range(12)]
        wrong = [number for number, each in enumerate(lists) if len(set(each)) > 1 and rng.random() < 0.2]
        for number in wrong:
            lists[number] = lists[number][::-1]
        indptr = np.concatenate([[0], np.cumsum([len(each) for each in lists])])
        assert integrity._first_row(indptr, np.concatenate(lists)) == (wrong[0] if wrong else -1)


def test_edge_fields_have_a_row_for_each_edge(folder):
    document = json.loads((folder / "graph.json").read_text())
    np.save(folder / LISTS / "field.w.npy", np.ones(150, np.float32))
    document["edge_types"]["node__to__node"]["fields"]["w"]["shape"] = [150]
    (folder / "graph.json").write_text(json.dumps(document))
    with refused("damaged-file 150 200"):
        check_graph(ps.load(folder))


@pytest.fixture
def parts(folder, tmp_path):
    cut(ps.load(folder), Cut(2, method="chunk"), tmp_path / "parts")
    return tmp_path / "parts"


@pytest.mark.parametrize(
    "place, value, said",
    [(3, 40, "damaged-file 40 node 3"), (3, 0, "damaged-file")],
)
def test_original_numbers_are_a_permutation(parts, place, value, said):
    change(parts / "original.npy", place, value)
    with refused(said):
        open_partition(parts).original()


@pytest.mark.parametrize(
    "file, value, said",
    [
        ("part1/edges/node__to__node/indices.npy", 40, "damaged-file 40 0"),
        ("part1/edges/node__to__node/place.test.npy", 9, "damaged-file 0 1"),
        ("part0/nodes/node/split.train.npy", 20, "damaged-file 20 0"),
    ],
)
def test_parts_are_checked_before_they_are_stitched(parts, file, value, said):
    path = parts / file
    if not len(np.load(path)):
        path = parts / file.replace("part1", "part0")
    change(path, 0, value)
    with refused(said):
        stitch(open_partition(parts))


def test_a_part_holds_what_the_partition_says(parts):
    path = parts / "part1" / "graph.json"
    document = json.loads(path.read_text())
    document["node_types"]["node"]["first"] = 0
    path.write_text(json.dumps(document))
    with refused("damaged-file 40 node"):
        open_partition(parts).part(1)


def test_what_the_partitioner_wrote_is_known(folder, tmp_path, counted):
    cut(ps.load(folder), Cut(2, method="chunk"), tmp_path / "parts")
    counted.clear()
    for part in range(2):
        check_graph(open_partition(tmp_path / "parts").part(part))
    assert counted == []


def test_counts_that_a_file_invents_are_not_allocated(tmp_path):
    """A vertex number or count far beyond the file's own size is refused before memory is asked for."""
    import torch
    from torch_geometric.data import Data

    with refused("out-of-memory"):
        ps.load(Data(edge_index=torch.tensor([[0, 10**13], [1, 2]])))
    triples = np.array([[0, 0, 1], [1, 1, 2]])
    held = {"valid": triples[:0], "test": triples[:0]}
    np.savez(tmp_path / "kg.npz", train=triples, num_entities=3, num_relations=10**9, **held)
    with refused("value-out-of-range 1,000,000,000 2"):
        ps.load(tmp_path / "kg.npz")
