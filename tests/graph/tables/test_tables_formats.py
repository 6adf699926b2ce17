"""The same tables in every format and compression give the same graph."""

import numpy as np
import pytest
from tables_workbench import COMPRESSIONS, Workbench

from penstock.graph import Graph

USERS = {
    "id": ["ann", "bob", "cem", "dee"],
    "age": [31.5, 22.0, 40.25, 19.0],
    "city": ["Rome", "NA", "Oslo", "NA"],
    "group": [0, 2, None, 1],
    "fold": ["train", "val", None, "test"],
}
BUYS = {
    "a": ["ann", "cem", "ann", "dee"],
    "b": [10, 11, 11, 10],
    "w": [1.0, 2.5, 3.0, 4.0],
    "t": [5, 6, 7, 8],
}


def _import(bench: Workbench, extension: str, form: str | None = None) -> Graph:
    named = {"format": form} if form else {}
    nodes = [
        {
            "type": "user",
            "files": bench.table(f"users{extension}", USERS),
            "id": "id",
            "features": ["age", {"column": "city", "categorical": "one-hot"}],
            "label": "group",
            "split": {"column": "fold"},
        }
        | named,
        {"type": "item"},
    ]
    edges = [
        {
            "type": ["user", "buys", "item"],
            "files": bench.table(f"buys{extension}", BUYS),
            "source": "a",
            "destination": "b",
            "weight": "w",
            "time": "t",
        }
        | named
    ]
    return bench.graph(nodes, edges)


def _check(graph: Graph) -> None:
    users, items = graph.nodes["user"], graph.nodes["item"]
    assert users.ids.tolist() == USERS["id"]
    assert items.ids.tolist() == [10, 11]
    expected = [[31.5, 0, 0, 1], [22, 1, 0, 0], [40.25, 0, 1, 0], [19, 1, 0, 0]]
    np.testing.assert_array_equal(users.x, np.array(expected, np.float32))
    assert users.x.dtype == np.float32
    assert users.y.tolist() == [0, 2, -1, 1]
    assert {name: rows.tolist() for name, rows in users.splits.items()} == {
        "train": [0],
        "val": [1],
        "test": [3],
    }
    buys = graph.edges["user", "buys", "item"]
    assert buys.edge_index().tolist() == [[0, 3, 0, 2], [0, 0, 1, 1]]
    assert buys.fields["weight"].tolist() == [1.0, 4.0, 3.0, 2.5]
    assert buys.fields["time"].tolist() == [5, 8, 7, 6]


@pytest.mark.parametrize("extension", [".parquet", ".csv", ".tsv", ".jsonl"])
def test_every_format(bench: Workbench, extension: str) -> None:
    _check(_import(bench, extension))


@pytest.mark.parametrize("extension", [".csv", ".tsv", ".jsonl"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_compression(bench: Workbench, extension: str, compression: str) -> None:
    _check(_import(bench, extension + compression))


def test_format_key_overrides_the_extension(bench: Workbench) -> None:
    _check(_import(bench, ".txt", "csv"))


def test_glob_and_list_in_order(bench: Workbench) -> None:
    bench.table("parts/b.parquet", {"id": [2, 3]})
    bench.table("parts/a.parquet", {"id": [0, 1]})
    bench.table("last.parquet", {"id": [9]})
    graph = bench.graph([{"type": "n", "files": ["parts/*.parquet", "last.parquet"], "id": "id"}])
    assert graph.nodes["n"].ids.tolist() == [0, 1, 2, 3, 9]


def test_types_hold_beyond_the_first_block(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block looks like integers; later ones have fractions, words and labels."""
    monkeypatch.setattr("penstock.graph.tables.reader._BLOCK_BYTES", 64)
    rows = [f"u{i},{i}.5,w,,{i % 2}" if i > 40 else f"u{i},{i},7,," for i in range(100)]
    bench.text("users.csv", "\n".join(["id,age,word,nothing,label", *rows]) + "\n")
    graph = bench.graph(
        [
            {
                "type": "user",
                "files": "users.csv",
                "id": "id",
                "features": ["age", {"column": "word", "categorical": "codes"}],
                "label": "label",
            }
        ]
    )
    assert graph.x[50, 0] == 50.5 and graph.x[3, 0] == 3
    assert graph.nodes["user"].categories["word"] == ["7", "w"]
    assert graph.y[:42].tolist() == [-1] * 41 + [1]


def test_leading_zeros_survive_as_strings(bench: Workbench) -> None:
    bench.text("users.csv", "id\n007\n7\n")
    bench.text("follows.csv", "a,b\n7,007\n")
    graph = bench.graph(
        [{"type": "user", "files": "users.csv", "id": "id", "id_type": "string"}],
        [{"type": ["user", "follows", "user"], "files": "follows.csv", "source": "a", "destination": "b"}],
    )
    assert graph.nodes["user"].ids.tolist() == ["007", "7"]
    assert graph.edges["user", "follows", "user"].edge_index().tolist() == [[1], [0]]


def test_csv_strings_may_hold_anything(bench: Workbench) -> None:
    names = ["", "a,b", 'say "hi"', "two\nlines", "NULL", "NaN", "ü"]
    graph = bench.graph([{"type": "user", "files": bench.table("users.csv", {"id": names}), "id": "id"}])
    assert graph.nodes["user"].ids.tolist() == names


def test_parquet_dictionaries_are_mapped_once(bench: Workbench) -> None:
    words = [f"tag{i % 7}" for i in range(5000)]
    bench.table("tags.parquet", {"a": words, "b": [f"tag{(i * 3) % 7}" for i in range(5000)]})
    graph = bench.graph(
        [{"type": "tag"}],
        [{"type": ["tag", "near", "tag"], "files": "tags.parquet", "source": "a", "destination": "b"}],
    )
    ids = graph.nodes["tag"].ids.tolist()
    assert ids == ["tag0", "tag1", "tag3", "tag2", "tag6", "tag4", "tag5"]
    sources = np.array([ids.index(word) for word in words])
    assert np.bincount(graph.indices).tolist() == np.bincount(sources).tolist()


def test_json_columns_may_be_late_and_others_messy(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.graph.tables.reader._HEAD_LINES", 2)
    lines = ['{"id": 1, "l": null, "z": 1}', '{"id": 2, "l": null, "z": "?"}', '{"id": 3, "l": 4, "z": [1]}']
    bench.text("users.jsonl", "\n".join(lines))
    graph = bench.graph([{"type": "user", "files": "users.jsonl", "id": "id", "label": "l"}])
    assert graph.y.tolist() == [-1, -1, 4]


def test_times_of_text_are_those_of_parquet(bench: Workbench) -> None:
    for extension in (".csv", ".jsonl"):
        rows = {"a": [1, 1], "b": [1, 1], "t": ["2020-01-01T00:00:00", "2020-01-01T00:00:05"]}
        edge = {"type": ["n", "e", "n"], "files": bench.table(f"e{extension}", rows), "source": "a", "destination": "b"}
        graph = bench.graph([{"type": "n"}], [{**edge, "time": "t"}], force=True)
        assert graph.edges["n", "e", "n"].fields["time"].tolist() == [1577836800, 1577836805]
