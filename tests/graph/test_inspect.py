"""The inspection: its counts against slow ones, every warning, the command's two faces."""

import json
from dataclasses import replace

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from penstock import EdgeSet, Graph, NodeSet
from penstock.cli.data import inspect_command
from penstock.graph import inspect
from penstock.graph.csr import build_lists
from penstock.graph.inspect import inspect_graph, scan_columns
from penstock.progress import SILENT, Progress
from refusals import refused

EDGES = ("node", "to", "node")


def graph_of(pairs, count, fields=None, splits=None):
    sources, destinations = np.array(pairs, np.int64).reshape(-1, 2).T
    indptr, indices, _ = build_lists(np.ascontiguousarray(sources), np.ascontiguousarray(destinations), count, count)
    nodes = NodeSet(count, fields or {}, {key: np.array(rows) for key, rows in (splits or {}).items()})
    return Graph({"node": nodes}, {EDGES: EdgeSet(indptr, indices)})


@given(st.integers(1, 9), st.data())
def test_counts_agree_with_plain_python(count, data):
    vertex = st.integers(0, count - 1)
    pairs = data.draw(st.lists(st.tuples(vertex, vertex), max_size=40))
    found = inspect_graph(graph_of(pairs, count))
    edges, nodes = found.edges[EDGES], found.nodes["node"]
    degrees = [sum(d == v for _, d in pairs) for v in range(count)]
    assert edges.count == len(pairs)
    assert edges.self_loops == sum(s == d for s, d in pairs)
    assert edges.duplicates == len(pairs) - len(set(pairs))
    assert edges.reciprocal == sum((d, s) in set(pairs) for s, d in pairs)
    assert edges.symmetric == all((d, s) in set(pairs) for s, d in pairs)
    assert nodes.isolated == found.isolated == sum(all(v not in pair for pair in pairs) for v in range(count))
    assert nodes.no_in_edges == degrees.count(0)
    assert found.degree.mean == pytest.approx(len(pairs) / count) and found.degree.max == max(degrees)
    assert found.degree.percentiles[50] == sorted(degrees)[count // 2]
    buckets = [degree.bit_length() for degree in degrees]
    assert found.degree.histogram == [buckets.count(k) for k in range(max(buckets) + 1)]


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_columns_of_nothing(shape):
    found = scan_columns(np.empty(shape, np.float32), False, SILENT)
    assert (found.not_finite, found.constant, len(found.stds)) == (0, 0, 0)


def test_a_node_type_without_vertices():
    assert inspect_graph(graph_of([], 0, {"x": np.empty((0, 3), np.float32)})).nodes["node"].count == 0


@given(
    rows=st.integers(1, 50),
    columns=st.integers(1, 5),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from(["float32", "float64", "float16", "int64", "uint8"]),
)
def test_columns_agree_with_numpy(rows, columns, seed, dtype):
    rng = np.random.default_rng(seed)
    table = (rng.random((rows, columns)) * [1, 10, 50, 100, 0][:columns]).astype(dtype)
    if table.dtype.kind == "f":
        table[rng.random(table.shape) < 0.05] = np.nan
        table[rng.random(table.shape) < 0.05] = np.inf
    scan = scan_columns(table, False, SILENT)
    finite = np.ma.masked_invalid(table.astype(np.float64))
    stds = finite.std(axis=0).filled(0)
    assert scan.not_finite == np.ma.count_masked(finite)
    assert scan.constant == np.count_nonzero((stds == 0) & (finite.count(axis=0) > 0))
    np.testing.assert_allclose(np.sort(scan.stds), np.sort(stds[stds > 0]), rtol=1e-5)


def test_small_variation_of_large_values_is_seen():
    times = (1.7e9 + np.arange(1000.0) / 1000).reshape(-1, 1)
    assert scan_columns(times, False, SILENT).stds[0] == pytest.approx(times.std(), rel=1e-6)


def test_blocks_and_threads_change_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 300, (2000, 2)).tolist()
    graph = graph_of(pairs, 300, {"x": rng.random((300, 4), np.float32)})
    whole = inspect_graph(graph)
    monkeypatch.setattr(inspect, "_BLOCK_ROWS", 7)
    monkeypatch.setattr(inspect, "_BLOCK_BYTES", 50)
    monkeypatch.setenv("PENSTOCK_THREADS", "3")
    cut = inspect_graph(graph)
    assert cut.edges == whole.edges and cut.degree == whole.degree and cut.warnings == whole.warnings
    np.testing.assert_allclose(cut.nodes["node"].fields["x"].columns.stds, whole.nodes["node"].fields["x"].columns.stds)


def test_a_mapped_graph_and_its_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(inspect, "_RELEASE_BYTES", 1)
    graph = healthy().save(tmp_path / "graph")
    found = inspect_graph(graph)
    assert found.path == tmp_path / "graph" and found.nbytes == graph.nbytes
    assert found.bytes_on_disk > found.nbytes
    assert graph.x.tolist() == healthy().x.tolist()
    assert inspect_graph(healthy()).bytes_on_disk is None


def test_progress_reaches_its_total():
    class Recorder(Progress):
        def __init__(self):
            self.steps = []

        def start(self, what, total, unit):
            self.steps.append([what, total, 0])

        def advance(self, amount):
            self.steps[-1][2] += amount

    recorder = Recorder()
    inspect_graph(healthy(), recorder)
    assert [what for what, _, _ in recorder.steps] == ["Scanning edges", "Scanning node/x"]
    assert all(total == done > 0 for _, total, done in recorder.steps)


RING = [(v, (v + 1) % 8) for v in range(8)] + [((v + 1) % 8, v) for v in range(8)]


def healthy(pairs=RING, x=None, y=None, splits=None, count=8):
    fields = {
        "x": np.random.default_rng(0).random((count, 3), np.float32) if x is None else x,
        "y": np.arange(count) % 2 if y is None else np.asarray(y),
    }
    return graph_of(
        pairs,
        count,
        fields,
        {"train": [0, 1, 2], "val": [3, 4], "test": [6, 7]} if splits is None else splits,
    )


def test_a_healthy_graph_has_no_warnings():
    found = inspect_graph(healthy())
    assert found.warnings == [] and found.edges[EDGES].symmetric


def unscaled():
    x = np.random.default_rng(0).random((8, 3), np.float32)
    x[:, 1] *= 1e5
    return x


@pytest.mark.parametrize(
    ("graph", "sentence"),
    [
        (healthy(RING, count=10), "2 vertices (20.0 %) have no edges at all"),
        (healthy([*RING, (8, 0)], count=9), "1 'node' vertex (11.1 %) has out- but no in-edges"),
        (healthy([*RING, (2, 2), (3, 3)]), "There are 2 self loops in node__to__node"),
        (healthy([*RING, (0, 1), (1, 0)]), "There are 2 parallel edges (11.1 %) in node__to__node"),
        (
            healthy([(v, (v + 1) % 8) for v in range(8)]),
            "Few edges of node__to__node have a reverse (0.0 %)",
        ),
        (graph_of(RING, 8, {"y": np.arange(8)}, {"train": [0]}), "No vertices have features (x)"),
        (
            graph_of(RING, 8, {"x": np.eye(8, dtype=np.float32)}),
            "There are no labels (y) and no held-out edges",
        ),
        (
            healthy(x=np.float32([[np.nan, v, -v] for v in range(8)])),
            "node/x has 8 values that are NaN or infinite",
        ),
        (healthy(x=np.random.default_rng(0).random((8, 3))), "node/x is float64: models compute in float32"),
        (healthy(x=np.float32([[1, v, 2] for v in range(8)])), "2 of 3 columns of node/x never change"),
        (healthy(x=unscaled()), "(standard deviation): standardise them"),
        (healthy(splits={}), "'node' vertices have labels but no splits"),
        (
            healthy(splits={"train": [0, 1, 2], "test": [1, 2, 5]}),
            "2 'node' vertices are in both train and test",
        ),
        (healthy(y=[0, 1, -1, 0, 1, 0, 1, 0]), "1 of the 3 'node' vertices in train have no label"),
        (
            healthy(y=np.float32([0, 1, np.nan, 0, 1, 0, 1, 0])),
            "1 of the 3 'node' vertices in train have no label",
        ),
        (
            healthy(y=[0, 1, 1, 2, 1, 0, 5, 6]),
            "Classes of 'node' in val that never occur in train cannot be learned (1: 2)",
        ),
        (healthy(y=[0, 1, 1, 2, 1, 0, 5, 6]), "Classes of 'node' in test that never occur in train"),
    ],
)
def test_what_hurts_is_said(graph, sentence):
    warnings = inspect_graph(graph).warnings
    assert any(sentence in warning for warning in warnings), warnings


def test_imbalance_and_hubs():
    count = 20_000
    star = [(v, 0) for v in range(1, count)]
    labels = np.zeros(count, np.int64)
    labels[:3] = 1
    graph = healthy(star, x=np.ones((count, 0), np.float32), y=labels, splits={"train": np.arange(1000)}, count=count)
    warnings = "\n".join(inspect_graph(graph).warnings)
    assert "In train a class of 'node' has 997 vertices and another 3" in warnings
    assert "One vertex has 19,999 in-edges, 20,000 times the mean" in warnings


def test_features_beyond_memory(monkeypatch):
    from penstock.graph import inspect

    monkeypatch.setattr(inspect, "_physical_memory", lambda: 50)
    assert any("they will be read from disk" in warning for warning in inspect_graph(healthy()).warnings)
    monkeypatch.setattr(inspect, "_physical_memory", lambda: 0)
    assert inspect_graph(healthy()).warnings == []


def test_several_types():
    lists = np.array([0, 1, 2]), np.array([0, 0], np.int32)
    graph = Graph(
        {"paper": NodeSet(3, {"x": np.eye(3, dtype=np.float32)}), "term": NodeSet(2)},
        {("paper", "has", "term"): EdgeSet(*lists, held_out={"test": np.array([[1, 1]])})},
    )
    found = inspect_graph(graph)
    edges = found.edges["paper", "has", "term"]
    assert edges.self_loops == 0 and edges.reciprocal is None and edges.symmetric is None
    assert found.nodes["paper"].isolated == 2 and found.nodes["term"].isolated == 0
    assert found.degree.max == 1 and found.degree.mean == pytest.approx(2 / 5)
    assert found.warnings == [
        "2 vertices (40.0 %) have no edges at all: a model sees nothing there but features.",
        "No edges lead to 'paper' vertices, so they receive no messages: add reverse relations.",
        "Vertices of type 'term' have no features (x): models need learned embeddings for them.",
    ]


def test_a_part_counts_its_own_rows():
    nodes = NodeSet(2, {"x": np.eye(2, dtype=np.float32)}, first=2, total=6)
    graph = Graph({"node": nodes}, {EDGES: EdgeSet(np.array([0, 2, 3]), np.array([5, 2, 3], np.int32))})
    found = inspect_graph(graph)
    assert found.edges[EDGES].self_loops == 2 and found.edges[EDGES].reciprocal is None
    assert found.warnings[0].startswith("This is a part of a cut graph")


def test_lists_in_another_order_are_not_called_one_way():
    """After a cut, lists ascend by original numbers: whether edges have a reverse is then not known."""
    graph = Graph({"node": NodeSet(3)}, {EDGES: EdgeSet(np.array([0, 2, 3, 4]), np.array([2, 1, 0, 0], np.int32))})
    found = inspect_graph(graph)
    assert found.edges[EDGES].reciprocal is None
    assert not any("reverse" in warning for warning in found.warnings)


def test_damage_is_a_sentence():
    for indptr, indices in (([0, 1, 2], [0, 7]), ([0, 1, 2], [-1, 0]), ([0, 5, 2], [0, 1])):
        edges = EdgeSet(np.array(indptr), np.array(indices, np.int32))
        with refused("damaged-file"):
            inspect_graph(Graph({"node": NodeSet(2)}, {EDGES: edges}))
    graph = healthy()
    graph.nodes["node"] = replace(graph.nodes["node"], splits={"train": np.array([3, 8])})
    with refused("damaged-file split.train node 8 1"):
        inspect_graph(graph)


def test_an_empty_graph():
    found = inspect_graph(graph_of([], 0))
    assert found.degree.max == 0 and found.isolated == 0 and found.degree.histogram == [0]


@pytest.fixture
def command():
    app = typer.Typer()
    app.command()(inspect_command)
    return lambda *arguments: CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "120"})


def test_command_as_json(command, tmp_path):
    healthy([*RING, (2, 2)], count=9).save(tmp_path / "graph")
    result = command(tmp_path / "graph", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "path": str(tmp_path / "graph"),
        "node_types": {
            "node": {
                "count": 9,
                "fields": {"x": {"dtype": "float32", "shape": [9, 3]}, "y": {"dtype": "int64", "shape": [9]}},
                "splits": {"train": 3, "val": 2, "test": 2},
            }
        },
        "edge_types": {"node__to__node": {"count": 17, "self_loops": 1, "duplicates": 0}},
        "degree": {"mean": pytest.approx(17 / 9), "max": 3},
        "isolated": 1,
        "bytes": Graph.open(tmp_path / "graph").nbytes,
        "warnings": inspect_graph(healthy([*RING, (2, 2)], count=9)).warnings,
        "segments": [],
    }


def test_command_for_people(command, tmp_path):
    healthy(count=9).save(tmp_path / "graph")
    shown = command(tmp_path / "graph").stdout
    for text in (
        "9 vertices, 16 edges",
        "node → to → node",
        "x float32 [3]",
        "train 3",
        "What may hurt training (1)",
    ):
        assert text in shown
    bars = [line.split() for line in shown.splitlines() if "█" in line or "▏" in line]
    assert bars == [["0", "█████", "1"], ["2-3", "█" * 40, "8"]]


def test_command_shows_the_largest_of_many_edge_types(command, tmp_path):
    edges = {("node", f"r{k}", "node"): EdgeSet(np.array([0, k, k]), np.zeros(k, np.int32)) for k in range(25)}
    Graph({"node": NodeSet(2)}, edges).save(tmp_path / "graph")
    warnings = inspect_graph(Graph.open(tmp_path / "graph")).warnings
    assert len([warning for warning in warnings if "parallel edges" in warning]) == 1
    assert any("node__r4__node and 20 more edge types" in warning for warning in warnings)
    shown = command(tmp_path / "graph").stdout
    assert "node → r24 → node" in shown and "node → r4 → node" not in shown and "and 5 more" in shown
