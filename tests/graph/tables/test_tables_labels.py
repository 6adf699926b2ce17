"""Labels and splits."""

import numpy as np
import pyarrow as pa
import pytest
from tables_workbench import USERS, Workbench

from penstock.graph import Graph


def _graph(bench: Workbench, column: object, label: object, **more: object) -> Graph:
    bench.table("users.parquet", {"id": np.arange(len(column)), "l": column})  # type: ignore[arg-type]
    return bench.graph([{**USERS, "label": label, **more}])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2, None, 0], pa.int32()),
        pa.array([2.0, float("nan"), 0.0]),
        pa.array([2, None, 0], pa.uint8()),
    ],
)
def test_class_numbers(bench: Workbench, column: pa.Array) -> None:
    graph = _graph(bench, column, {"column": "l", "classes": 3})
    assert graph.y.dtype == np.int64 and graph.y.tolist() == [2, -1, 0]


def test_class_words_are_sorted(bench: Workbench) -> None:
    graph = _graph(bench, ["dog", None, "cat", "dog"], "l")
    assert graph.y.tolist() == [1, -1, 0, 1]
    assert graph.nodes["user"].categories["y"] == ["cat", "dog"]


def test_float_label(bench: Workbench) -> None:
    graph = _graph(bench, [1.5, None, 3.0], {"column": "l", "kind": "float"})
    assert graph.y.dtype == np.float32
    np.testing.assert_array_equal(graph.y, [1.5, np.nan, 3.0])


def test_multi_label_numbers(bench: Workbench) -> None:
    column = pa.array([[0, 2], None, [], [1]], pa.list_(pa.int64()))
    graph = _graph(bench, column, {"column": "l", "kind": "multi-label"})
    assert graph.y.dtype == np.uint8
    assert graph.y.tolist() == [[1, 0, 1], [0, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_multi_label_words_and_given_width(bench: Workbench) -> None:
    graph = _graph(bench, [["b", "a"], ["c"]], {"column": "l", "kind": "multi-label"})
    assert graph.y.tolist() == [[1, 1, 0], [0, 0, 1]]
    assert graph.nodes["user"].categories["y"] == ["a", "b", "c"]
    wide = _graph(bench, [[0], [1]], {"column": "l", "kind": "multi-label", "classes": 4}, files="users.parquet")
    assert wide.y.shape == (2, 4)


@pytest.fixture(autouse=True)
def _fresh_output(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several imports in one test replace each other."""
    original = bench.graph
    monkeypatch.setattr(bench, "graph", lambda *parts, **options: original(*parts, **{"force": True, **options}))


def test_multi_label_columns(bench: Workbench) -> None:
    bench.table("users.parquet", {"id": [0, 1], "a": [1, 0], "b": [1.0, 1.0], "c": [False, True]})
    graph = bench.graph([{**USERS, "label": {"columns": ["a", "b", "c"], "kind": "multi-label"}}])
    assert graph.y.tolist() == [[1, 1, 0], [0, 1, 1]]
    assert graph.nodes["user"].categories["y"] == ["a", "b", "c"]


def test_split_words(bench: Workbench) -> None:
    words = ["train", "val", "valid", "validation", "test", "", None, "Train"]
    bench.table("users.parquet", {"id": np.arange(8), "fold": words})
    splits = bench.graph([{**USERS, "split": {"column": "fold"}}]).nodes["user"].splits
    assert {name: rows.tolist() for name, rows in splits.items()} == {
        "train": [0, 7],
        "val": [1, 2, 3],
        "test": [4],
    }


def test_ratios_draw_among_the_labelled(bench: Workbench) -> None:
    column = pa.array([None if i % 2 else i % 3 for i in range(200)], pa.int64())
    ratios = {"ratios": [0.6, 0.2, 0.2], "seed": 3}
    splits = _graph(bench, column, "l", split=ratios).nodes["user"].splits
    assert [len(splits[name]) for name in ("train", "val", "test")] == [60, 20, 20]
    assert not (np.concatenate(list(splits.values())) % 2).any()
    again = _graph(bench, column, "l", split=ratios).nodes["user"].splits
    assert all(np.array_equal(splits[name], again[name]) for name in splits)


def test_ratios_without_labels_draw_among_all(bench: Workbench) -> None:
    bench.table("users.parquet", {"id": np.arange(10)})
    splits = bench.graph([{**USERS, "split": {"ratios": [0.5, 0, 0.5]}}]).nodes["user"].splits
    assert [len(splits[name]) for name in ("train", "val", "test")] == [5, 0, 5]
