"""Columns become fields as the spec says."""

import numpy as np
import pyarrow as pa
import pytest
from tables_workbench import FOLLOWS, USERS, Workbench


def test_features_stand_in_the_order_of_the_spec(bench: Workbench) -> None:
    embedding = pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2))
    bench.table(
        "users.parquet",
        {
            "id": [5, 6, 7],
            "e": embedding,
            "l": [[7], [8], [9]],
            "b": [True, False, True],
            "w": ["z", "a", "z"],
        },
    )
    hot = {"column": "w", "categorical": "one-hot"}
    graph = bench.graph([{**USERS, "features": ["b", {"column": "e"}, hot, "l"]}])
    expected = [[1, 1, 2, 0, 1, 7], [0, 3, 4, 1, 0, 8], [1, 5, 6, 0, 1, 9]]
    assert graph.x.tolist() == expected


def test_standardised_over_all_chunks(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.graph.tables.reader._BATCH_BYTES", 1)
    values = 1e6 + np.random.default_rng(0).standard_normal(1000) * 3
    pairs = np.stack([values, np.full(1000, 5.0)], axis=1)
    bench.table("users.parquet", {"id": np.arange(1000), "v": values, "p": list(pairs)})
    standard = [{"column": "v", "standardise": True}, {"column": "p", "standardise": True}]
    graph = bench.graph([{**USERS, "features": standard}])
    expected = (values - values.mean()) / values.std()
    np.testing.assert_allclose(graph.x[:, 0], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(graph.x[:, 1], expected, rtol=1e-5, atol=1e-5)
    assert not graph.x[:, 2].any(), "a column that never changes is 0, not NaN"
    mean, deviation = graph.origin["standardised"]["user"]["v"]
    assert mean == pytest.approx(values.mean()) and deviation == pytest.approx(values.std())
    assert graph.origin["standardised"]["user"]["p"][0] == pytest.approx([values.mean(), 5])


def test_codes_are_a_field_of_their_own(bench: Workbench) -> None:
    bench.table("users.parquet", {"id": [1, 2, 3, 4], "device": ["tv", "phone", None, "tv"], "zip": [10, 9, 10, 2]})
    codes = [{"column": "device", "categorical": "codes"}, {"column": "zip", "categorical": "codes"}]
    users = bench.graph([{**USERS, "features": codes}]).nodes["user"]
    assert users.fields["device"].tolist() == [1, 0, -1, 1]
    assert users.fields["device"].dtype == np.int32
    assert users.categories == {"device": ["phone", "tv"], "zip": ["2", "9", "10"]}
    assert "x" not in users.fields


def test_given_categories_fix_order_and_width(bench: Workbench) -> None:
    bench.table("users.parquet", {"id": [1, 2], "w": ["b", "a"]})
    hot = {"column": "w", "categorical": "one-hot", "categories": ["c", "b", "a"]}
    assert bench.graph([{**USERS, "features": [hot]}]).x.tolist() == [[0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float16", "float32", "float64", "bool"])
def test_fields_keep_their_dtype(bench: Workbench, dtype: str) -> None:
    values = np.array([0, 1, 1], dtype)
    bench.table("users.parquet", {"id": [0, 1, 2], "v": values})
    field = bench.graph([{**USERS, "fields": ["v"]}]).nodes["user"].fields["v"]
    assert field.dtype == values.dtype and field.tolist() == values.tolist()


def test_fields_of_several_columns_times_and_lists(bench: Workbench) -> None:
    times = pa.array([1_000, 2_000], pa.timestamp("ms"))
    lists = pa.array([[1, 2], [3, 4]], pa.list_(pa.int16()))
    bench.table("users.parquet", {"id": [0, 1], "lat": [1.5, 2.5], "lon": [3.5, 4.5], "since": times, "l": lists})
    place = {"name": "place", "columns": ["lat", "lon"], "dtype": "float32"}
    fields = bench.graph([{**USERS, "fields": [place, "since", "l"]}]).nodes["user"].fields
    assert fields["place"].dtype == np.float32 and fields["place"].tolist() == [[1.5, 3.5], [2.5, 4.5]]
    assert fields["since"].dtype == np.int64 and fields["since"].tolist() == [1000, 2000]
    assert fields["l"].dtype == np.int16 and fields["l"].tolist() == [[1, 2], [3, 4]]


def test_edge_fields_follow_their_edges(bench: Workbench) -> None:
    rng = np.random.default_rng(1)
    a, b, value = rng.integers(0, 20, 500), rng.integers(0, 20, 500), np.arange(500)
    bench.table("users.parquet", {"id": np.arange(20)})
    words = np.array(["x", "y"])[value % 2]
    bench.table("follows.parquet", {"a": a, "b": b, "v": value.astype(float), "w": words, "m": value / 2, "t": value})
    features = ["v", {"column": "w", "categorical": "one-hot"}]
    edges = bench.graph([USERS], [{**FOLLOWS, "features": features, "weight": "m", "time": "t"}]).edges
    made = edges["user", "follows", "user"]
    order = np.lexsort([value, a, b])
    assert made.edge_index().tolist() == [a[order].tolist(), b[order].tolist()]
    assert made.fields["time"].tolist() == value[order].tolist(), "parallel edges keep their order of arrival"
    np.testing.assert_array_equal(made.fields["x"][:, 0], value[order])
    np.testing.assert_array_equal(made.fields["x"][:, 2], value[order] % 2)
    np.testing.assert_array_equal(made.fields["weight"], (value[order] / 2).astype(np.float32))


def test_edge_features_standardised(bench: Workbench) -> None:
    bench.table("users.parquet", {"id": [0, 1]})
    bench.table("follows.parquet", {"a": [0, 1], "b": [1, 0], "v": [1.0, 3.0]})
    graph = bench.graph([USERS], [{**FOLLOWS, "features": [{"column": "v", "standardise": True}], "reverse": True}])
    assert graph.edges["user", "follows", "user"].fields["x"].tolist() == [[1], [-1]]
    assert graph.origin["standardised"] == {"user__follows__user": {"v": [2, 1]}}
