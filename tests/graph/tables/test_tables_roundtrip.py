"""Tables to folder to tables: what comes out is what went in."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tables_workbench import Workbench

from penstock.graph import EdgeSet, Graph, NodeSet, StringIds
from penstock.graph.tables import export_tables, import_tables
from penstock.partition import Cut, cut, stitch
from refusals import refused

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
NAMES = st.lists(st.text(max_size=12), min_size=1, max_size=8, unique=True)
NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8, unique=True)


@st.composite
def shops(draw: st.DrawFn) -> dict[str, Any]:
    """Users with string ids, items with integer ids, edges between and among them: loops, parallel and isolated too."""
    users, items = draw(NAMES), draw(NUMBERS)
    ends = st.tuples(st.integers(0, len(users) - 1), st.integers(0, len(items) - 1))
    loops = st.tuples(st.integers(0, len(users) - 1), st.integers(0, len(users) - 1))
    of_users = {"min_size": len(users), "max_size": len(users)}
    return {
        "users": users,
        "items": items,
        "x": draw(st.lists(st.tuples(FLOATS, FLOATS), **of_users)),
        "word": draw(st.lists(st.none() | st.text(max_size=3), **of_users)),
        "fold": draw(st.lists(st.sampled_from([None, "train", "val", "test"]), **of_users)),
        "buys": draw(st.lists(st.tuples(ends, FLOATS, st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=25)),
        "knows": draw(st.lists(st.tuples(loops, FLOATS), min_size=1, max_size=25)),
    }


def _write(shop: dict[str, Any], bench: Workbench) -> Path:
    users, items = shop["users"], shop["items"]
    vectors = pa.array(shop["x"], pa.list_(pa.float32(), 2))
    bench.table(
        "users.parquet",
        {
            "id": users,
            "x": vectors,
            "word": pa.array(shop["word"], pa.string()),
            "fold": pa.array(shop["fold"], pa.string()),
        },
    )
    bench.table("items.parquet", {"id": items})
    bench.table(
        "buys.parquet",
        {
            "u": [users[u] for (u, _), _, _ in shop["buys"]],
            "i": [items[i] for (_, i), _, _ in shop["buys"]],
            "f": pa.array([f for _, f, _ in shop["buys"]], pa.float32()),
            "t": [t for _, _, t in shop["buys"]],
        },
    )
    bench.table(
        "knows.parquet",
        {
            "u": [users[u] for (u, _), _ in shop["knows"]],
            "v": [users[v] for (_, v), _ in shop["knows"]],
            "w": pa.array([w for _, w in shop["knows"]], pa.float32()),
        },
    )
    nodes = [
        {
            "type": "user",
            "files": "users.parquet",
            "id": "id",
            "features": ["x"],
            "label": "word",
            "split": {"column": "fold"},
        },
        {"type": "item", "files": "items.parquet", "id": "id"},
    ]
    ends = {"source": "u", "destination": "i"}
    edges = [
        {"type": ["user", "buys", "item"], "files": "buys.parquet", **ends, "features": ["f"], "time": "t"},
        {"type": ["user", "knows", "user"], "files": "knows.parquet", "source": "u", "destination": "v", "weight": "w"},
    ]
    return bench.spec(nodes, edges)


@given(shops(), st.sampled_from(["parquet", "csv"]))
def test_tables_come_back_exactly(shop: dict[str, Any], form: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench(Path(folder))
        graph = import_tables(_write(shop, bench), bench.out)
        tables = bench.folder / "tables"
        export_tables(graph, tables, form)
        _compare_nodes(shop, tables, form)
        _compare_edges(shop, tables, form)
        assert_equal(import_tables(tables / "spec.yaml", bench.folder / "again"), graph)


@given(shops(), st.sampled_from(["random", "chunk", "metis", "stream"]))
def test_tables_come_back_exactly_through_parts(shop: dict[str, Any], method: str) -> None:
    """Tables to folder to parts, stitched together and exported: the tables again."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench(Path(folder))
        graph = import_tables(_write(shop, bench), bench.out)
        parts = cut(graph, Cut(2, method=method), bench.folder / "parts")
        stitched = stitch(parts)
        assert_equal(stitched, graph)
        export_tables(stitched, bench.folder / "tables", "parquet")
        _compare_nodes(shop, bench.folder / "tables", "parquet")
        _compare_edges(shop, bench.folder / "tables", "parquet")


def _compare_nodes(shop: dict[str, Any], tables: Path, form: str) -> None:
    users = _read(tables / f"nodes/user.{form}", {"id": pa.string(), "y": pa.string(), "split": pa.string()})
    assert users["id"].to_pylist() == shop["users"]
    assert users["y"].to_pylist() == shop["word"]
    assert users["split"].to_pylist() == shop["fold"]
    vectors = (
        users["x"].to_pylist()
        if form == "parquet"
        else list(zip(users["x_0"].to_pylist(), users["x_1"].to_pylist(), strict=True))
    )
    np.testing.assert_array_equal(np.array(vectors, np.float32), np.array(shop["x"], np.float32))
    assert _read(tables / f"nodes/item.{form}", {"id": pa.int64()})["id"].to_pylist() == shop["items"]


def _compare_edges(shop: dict[str, Any], tables: Path, form: str) -> None:
    users, items = shop["users"], shop["items"]
    buys = _read(tables / f"edges/user__buys__item.{form}", {"source": pa.string(), "destination": pa.int64()})
    expected = sorted(shop["buys"], key=lambda row: (row[0][1], row[0][0]))
    assert buys["source"].to_pylist() == [users[u] for (u, _), _, _ in expected]
    assert buys["destination"].to_pylist() == [items[i] for (_, i), _, _ in expected]
    assert buys["time"].to_pylist() == [t for _, _, t in expected]
    knows = _read(tables / f"edges/user__knows__user.{form}", {"source": pa.string(), "destination": pa.string()})
    expected = sorted(shop["knows"], key=lambda row: (row[0][1], row[0][0]))
    assert knows["source"].to_pylist() == [users[u] for (u, _), _ in expected]
    assert knows["destination"].to_pylist() == [users[v] for (_, v), _ in expected]
    weights = np.array(knows["weight"].to_pylist(), np.float32)
    np.testing.assert_array_equal(weights, np.array([w for _, w in expected], np.float32))


def _read(path: Path, types: dict[str, pa.DataType]) -> pa.Table:
    if path.suffix == ".parquet":
        return pq.read_table(path)
    convert = pacsv.ConvertOptions(
        column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    return pacsv.read_csv(path, parse_options=pacsv.ParseOptions(newlines_in_values=True), convert_options=convert)


def assert_equal(found: Graph, expected: Graph) -> None:
    """Every array, id, name and category."""
    assert found.name == expected.name
    assert found.node_types == expected.node_types and found.edge_types == expected.edge_types
    for name, nodes in expected.nodes.items():
        other = found.nodes[name]
        assert other.count == nodes.count and other.categories == nodes.categories
        assert (other.ids is None) == (nodes.ids is None)
        assert nodes.ids is None or other.ids.tolist() == nodes.ids.tolist()
        _same_arrays(other.fields, nodes.fields)
        _same_arrays(other.splits, nodes.splits)
    for kind, edges in expected.edges.items():
        other_edges = found.edges[kind]
        assert other_edges.categories == edges.categories
        _same_arrays({"p": other_edges.indptr, "i": other_edges.indices}, {"p": edges.indptr, "i": edges.indices})
        _same_arrays(other_edges.fields, edges.fields)
        _same_arrays(other_edges.held_out, edges.held_out)


def _same_arrays(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert found[name].dtype == values.dtype and found[name].shape == values.shape, name
        np.testing.assert_array_equal(found[name], values)


def _many_fields() -> Graph:
    rng = np.random.default_rng(0)
    fields = {
        "x": rng.standard_normal((5, 3)).astype(np.float32),
        "y": np.array([0, -1, 2, 1, 0]),
        "half": np.array([0.5, np.nan, np.inf, 1, 2], np.float16),
        "flag": np.array([True, False, True, True, False]),
        "big": np.array([2**64 - 1, 0, 1, 2, 3], np.uint64),
        "tiny": np.array([[-128], [127], [0], [1], [2]], np.int8),
        "none": np.empty((5, 0), np.float32),
        "id": np.arange(5, dtype=np.int16),
        "split": np.arange(5.0),
        "x_0": np.arange(5),
        "code": np.array([1, -1, 0, 1, 0], np.int32),
        "tags": rng.integers(0, 2, (5, 2), dtype=np.uint8),
    }
    categories = {"y": ["c", "a", "b"], "code": ["10", "9"], "tags": ["p", "q"]}
    splits = {"train": np.array([0, 3]), "val": np.array([1]), "test": np.array([4])}
    people = NodeSet(5, fields, splits, StringIds.of(["", "a,b", '"', "x\ny", "ü"]), categories)
    empty = NodeSet(0, {"v": np.empty((0, 2), np.float32)})
    held_out = {"val": np.array([[0, 1], [2, 2]]), "test": np.array([[4, 0]])}
    edge_fields = {"x": rng.standard_normal((4, 2)).astype(np.float32), "kind": np.array([0, 1, -1, 0], np.int32)}
    knows = EdgeSet(
        np.array([0, 2, 2, 3, 3, 4]), np.array([1, 1, 2, 0], np.int32), edge_fields, held_out, {"kind": ["k", "l"]}
    )
    nothing = EdgeSet(np.zeros(1, np.int64), np.empty(0, np.int32), {"w": np.empty(0, np.float32)})
    edges = {("per son", "knows", "per son"): knows, ("per son", "has/had", "no*one"): nothing}
    return Graph({"per son": people, "no*one": empty}, edges, "odd: names")


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_every_kind_of_field_and_empty_types(tmp_path: Path, form: Any) -> None:
    graph = _many_fields()
    files = export_tables(graph, tmp_path / "tables", form)
    assert all((tmp_path / "tables" / name).is_file() for name in files)
    assert_equal(import_tables(tmp_path / "tables" / "spec.yaml", tmp_path / "again"), graph)


def test_words_and_ids_are_those_of_the_user(tmp_path: Path) -> None:
    export_tables(_many_fields(), tmp_path / "tables")
    table = pq.read_table(tmp_path / "tables/nodes/per son.parquet")
    assert table["y"].to_pylist() == ["c", None, "b", "a", "c"]
    assert table["code"].to_pylist() == ["9", None, "10", "9", "10"]
    assert table["id"].to_pylist() == ["", "a,b", '"', "x\ny", "ü"]
    assert table["split"].to_pylist() == ["train", "val", None, "train", "test"]
    assert pa.types.is_fixed_size_list(table.schema.field("x").type)
    spec = yaml.safe_load((tmp_path / "tables/spec.yaml").read_text())
    assert spec["nodes"][0]["label"]["categories"] == ["c", "a", "b"]


def test_held_out_pairs_are_rows_with_a_split(tmp_path: Path) -> None:
    export_tables(_many_fields(), tmp_path / "tables", "csv")
    lines = (tmp_path / "tables/edges/per son__knows__per son.csv").read_text().count("val")
    assert lines == 2


def test_export_refuses_what_tables_cannot_say(tmp_path: Path) -> None:
    nodes = NodeSet(2, {}, {"train": np.array([0, 1]), "val": np.array([1])})
    cases = [
        (NodeSet(2, {"v": np.zeros((2, 2, 2))}), "wrong-type 3"),
        (NodeSet(2, {"v": np.zeros(2, complex)}), "wrong-type complex128"),
        (nodes, "unsupported-combination"),
        (NodeSet(2, {}, {"dev": np.array([0])}), "unsupported-combination dev"),
        (NodeSet(2, {"c": np.array([0, 7], np.int32)}, categories={"c": ["a"]}), "damaged-file"),
        (NodeSet(2, first=1, total=9), "whole-graph-needed"),
    ]
    for bad, what in cases:
        with refused(what):
            export_tables(Graph({"n": bad}, {}), tmp_path / "tables")
        assert list(tmp_path.iterdir()) == []


def test_export_replaces_only_its_own(tmp_path: Path) -> None:
    graph = Graph({"n": NodeSet(2)}, {})
    export_tables(graph, tmp_path / "tables")
    with refused("file-exists --force"):
        export_tables(graph, tmp_path / "tables")
    export_tables(graph, tmp_path / "tables", "csv", force=True)
    assert not (tmp_path / "tables/nodes/n.parquet").exists()
