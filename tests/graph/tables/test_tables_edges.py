"""What the spec can do with edges."""

import numpy as np
import pytest
from tables_workbench import FOLLOWS, USERS, Workbench

KEY = ("user", "follows", "user")


def _pairs(edges: object) -> list[tuple[int, int]]:
    return [tuple(pair) for pair in edges.edge_index().T.tolist()]  # type: ignore[attr-defined]


@pytest.fixture
def people(bench: Workbench) -> Workbench:
    bench.table("users.parquet", {"id": ["a", "b", "c"]})
    bench.table(
        "follows.parquet",
        {"a": ["b", "a", "b", "c", "c"], "b": ["a", "b", "a", "c", "a"], "t": [1, 2, 3, 4, 5]},
    )
    return bench


def test_lists_ascend_and_parallel_edges_stay(people: Workbench) -> None:
    edges = people.graph([USERS], [{**FOLLOWS, "time": "t"}]).edges[KEY]
    assert _pairs(edges) == [(1, 0), (1, 0), (2, 0), (0, 1), (2, 2)]
    assert edges.fields["time"].tolist() == [1, 3, 5, 2, 4]


def test_deduplicate_keeps_the_first(people: Workbench) -> None:
    edges = people.graph([USERS], [{**FOLLOWS, "time": "t", "deduplicate": True}]).edges[KEY]
    assert _pairs(edges) == [(1, 0), (2, 0), (0, 1), (2, 2)]
    assert edges.fields["time"].tolist() == [1, 5, 2, 4]


def test_undirected_adds_the_opposite_and_loops_once(people: Workbench) -> None:
    edges = people.graph([USERS], [{**FOLLOWS, "time": "t", "undirected": True}]).edges[KEY]
    assert _pairs(edges) == [(1, 0), (1, 0), (1, 0), (2, 0), (0, 1), (0, 1), (0, 1), (0, 2), (2, 2)]
    assert edges.fields["time"].tolist() == [1, 2, 3, 5, 1, 2, 3, 5, 4]


def test_undirected_and_deduplicated_is_symmetric(people: Workbench) -> None:
    options = {"undirected": True, "deduplicate": True, "time": "t"}
    edges = people.graph([USERS], [{**FOLLOWS, **options}]).edges[KEY]
    assert _pairs(edges) == [(1, 0), (2, 0), (0, 1), (0, 2), (2, 2)]
    assert edges.fields["time"].tolist() == [1, 5, 1, 5, 4]


def test_undirected_without_fields(people: Workbench) -> None:
    edges = people.graph([USERS], [{**FOLLOWS, "undirected": True, "deduplicate": True}]).edges[KEY]
    assert _pairs(edges) == [(1, 0), (2, 0), (0, 1), (0, 2), (2, 2)]


@pytest.mark.parametrize(("reverse", "relation"), [("followed-by", "followed-by"), (True, "rev-follows")])
def test_reverse_is_a_type_of_its_own(people: Workbench, reverse: object, relation: str) -> None:
    graph = people.graph([USERS], [{**FOLLOWS, "time": "t", "reverse": reverse}])
    back = graph.edges["user", relation, "user"]
    assert _pairs(back) == [(1, 0), (0, 1), (0, 1), (0, 2), (2, 2)]
    assert back.fields["time"].tolist() == [2, 1, 3, 5, 4]
    assert len(graph.edges) == 2


def test_held_out_rows_are_pairs_not_edges(bench: Workbench) -> None:
    bench.table("users.parquet", {"id": ["a", "b", "c"]})
    rows = {
        "a": ["a", "b", "c", "a"],
        "b": ["b", "c", "a", "c"],
        "w": [1.0, 2, 3, 4],
        "f": ["train", "test", "val", None],
    }
    bench.table("follows.parquet", rows)
    options = {"split": {"column": "f"}, "weight": "w", "reverse": True}
    graph = bench.graph([USERS], [{**FOLLOWS, **options}])
    edges = graph.edges[KEY]
    assert _pairs(edges) == [(0, 1), (0, 2)] and edges.fields["weight"].tolist() == [1, 4]
    assert {name: pairs.tolist() for name, pairs in edges.held_out.items()} == {
        "val": [[2, 0]],
        "test": [[1, 2]],
    }
    assert graph.edges["user", "rev-follows", "user"].held_out == {}


def test_dangling_dropped_and_counted(people: Workbench) -> None:
    people.table("users.parquet", {"id": ["a", "b"]})
    graph = people.graph([USERS], [{**FOLLOWS, "time": "t", "dangling": "drop"}])
    assert _pairs(graph.edges[KEY]) == [(1, 0), (1, 0), (0, 1)]
    assert graph.edges[KEY].fields["time"].tolist() == [1, 3, 2]
    assert graph.origin["dropped"] == {"user__follows__user": 2}


def test_dangling_created_in_order_of_appearance(bench: Workbench) -> None:
    bench.table("users.parquet", {"id": ["a"], "v": [1.0], "c": ["x"], "l": [1], "f": ["train"]})
    bench.table("follows.parquet", {"a": ["z", "a", "y", "z"], "b": ["y", "x", "z", "w"]})
    nodes = {
        **USERS,
        "features": ["v", {"column": "c", "categorical": "codes"}],
        "label": "l",
        "split": {"column": "f"},
        "fields": [{"column": "v", "name": "extra"}],
    }
    graph = bench.graph([nodes], [{**FOLLOWS, "dangling": "create"}])
    users = graph.nodes["user"]
    assert users.ids.tolist() == ["a", "z", "y", "x", "w"]
    assert users.x.tolist() == [[1], [0], [0], [0], [0]]
    assert users.fields["c"].tolist() == [0, -1, -1, -1, -1]
    assert users.y.tolist() == [1, -1, -1, -1, -1]
    assert users.fields["extra"].tolist() == [1, 0, 0, 0, 0]
    assert users.splits["train"].tolist() == [0]
    assert graph.origin["created"] == {"user": 4}


def test_dropped_rows_create_nothing(bench: Workbench) -> None:
    bench.table("users.parquet", {"id": ["a"]})
    bench.table("uses.parquet", {"a": ["a", "q"], "b": ["t1", "t2"]})
    edge = {"type": ["user", "uses", "tag"], "files": "uses.parquet", "source": "a", "destination": "b"}
    graph = bench.graph([USERS, {"type": "tag"}], [{**edge, "dangling": "drop"}])
    assert graph.nodes["tag"].ids.tolist() == ["t1"]


def test_creation_does_not_depend_on_chunks(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    bench.table("follows.parquet", {"a": rng.integers(0, 500, 3000), "b": rng.integers(0, 500, 3000)})
    nodes, edges = [{"type": "user"}], [{**FOLLOWS}]
    whole = bench.graph(nodes, edges)
    expected = whole.nodes["user"].ids.tolist()
    monkeypatch.setattr("penstock.graph.tables.reader._BATCH_ROWS", 257)
    again = bench.graph(nodes, edges, force=True)
    assert again.nodes["user"].ids.tolist() == expected
    assert _pairs(again.edges[KEY]) == _pairs(whole.edges[KEY])


@pytest.mark.parametrize(("nodes", "edges"), [([1, 2, 3], ["3", "1"]), (["1", "2", "3"], [3, 1])])
def test_ends_are_cast_to_the_kind_of_the_ids(bench: Workbench, nodes: list[object], edges: list[object]) -> None:
    bench.table("users.parquet", {"id": nodes})
    bench.table("follows.parquet", {"a": edges, "b": edges[::-1]})
    assert _pairs(bench.graph([USERS], [FOLLOWS]).edges[KEY]) == [(2, 0), (0, 2)]


def test_two_types_and_no_ids_when_they_count(bench: Workbench) -> None:
    bench.table("users.parquet", {"id": [0, 1, 2]})
    bench.table("items.parquet", {"id": [4, 3]})
    bench.table("buys.parquet", {"a": [2, 0], "b": [3, 4]})
    edge = {"type": ["user", "buys", "item"], "files": "buys.parquet", "source": "a", "destination": "b"}
    graph = bench.graph([USERS, {"type": "item", "files": "items.parquet", "id": "id"}], [edge])
    assert graph.nodes["user"].ids is None and graph.nodes["item"].ids.tolist() == [4, 3]
    assert graph.edges["user", "buys", "item"].edge_index().tolist() == [[0, 2], [0, 1]]
