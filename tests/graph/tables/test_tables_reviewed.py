"""Inputs that once gave wrong numbers or tracebacks."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from penstock.graph.tables import import_tables
from refusals import refused


def imported(tmp_path, spec, **files):
    """The graph of a spec and text files written beside it."""
    for name, text in files.items():
        (tmp_path / name.replace("_", ".")).write_text(text)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    return import_tables(tmp_path / "spec.yaml", tmp_path / "out")


def nodes(**keys):
    return {"name": "g", "nodes": [{"type": "a", "id": "id", **keys}], "edges": []}


def test_a_constant_column_is_moved_to_zero(tmp_path):
    spec = nodes(files="n.csv", features=[{"column": "v", "standardise": True}])
    graph = imported(tmp_path, spec, n_csv="id,v\n1,0.1\n2,0.1\n3,0.1\n")
    np.testing.assert_allclose(graph.x, 0, atol=1e-6)


def test_both_ends_of_an_edge_only_type_are_one_kind(tmp_path):
    spec = {"name": "g", "nodes": [{"type": "a"}]}
    spec["edges"] = [{"type": ["a", "to", "a"], "files": "e.csv", "source": "s", "destination": "d"}]
    graph = imported(tmp_path, spec, e_csv="s,d\nabc,007\n007,008\n")
    assert graph.nodes["a"].ids.tolist() == ["abc", "007", "008"]


def test_words_that_look_like_dates_stay_words(tmp_path):
    rows = "".join(json.dumps({"id": f"2020-01-0{k}", "day": "2020-01-01"}) + "\n" for k in (1, 2))
    spec = nodes(files="n.jsonl", features=[{"column": "day", "categorical": "codes"}])
    graph = imported(tmp_path, spec, n_jsonl=rows)
    assert graph.nodes["a"].ids.tolist() == ["2020-01-01", "2020-01-02"]
    assert graph.nodes["a"].categories["day"] == ["2020-01-01"]


@pytest.mark.parametrize("value", [2**63 + 5, 1e19])
def test_labels_beyond_int64_are_refused(tmp_path, value):
    kind = pa.uint64() if isinstance(value, int) else pa.float64()
    pq.write_table(pa.table({"id": [1], "y": pa.array([value], kind)}), tmp_path / "n.parquet")
    with refused("value-out-of-range"):
        imported(tmp_path, nodes(files="n.parquet", label="y"))


def test_times_beyond_int64_are_refused(tmp_path):
    spec = {"name": "g", "nodes": [{"type": "a"}]}
    spec["edges"] = [{"type": ["a", "to", "a"], "files": "e.parquet", "source": "s", "destination": "d", "time": "t"}]
    pq.write_table(pa.table({"s": [1], "d": [2], "t": pa.array([2**63 + 5], pa.uint64())}), tmp_path / "e.parquet")
    with refused("wrong-type"):
        imported(tmp_path, spec)


def test_times_of_several_units_become_one(tmp_path):
    for name, unit, value in (("1", "ms", 1_577_836_800_000), ("2", "us", 1_577_836_800_000_000)):
        pq.write_table(
            pa.table({"id": [name], "t": pa.array([value], pa.timestamp(unit))}), tmp_path / f"{name}.parquet"
        )
    graph = imported(tmp_path, nodes(files="*.parquet", fields=["t"]))
    assert graph.nodes["a"].fields["t"].tolist() == [1_577_836_800_000] * 2


@pytest.mark.parametrize("order", [["full.csv", "bare.csv"], ["bare.csv", "full.csv"]])
def test_a_file_with_only_a_header_among_others(tmp_path, order):
    spec = nodes(files=order, features=["v"], label="y")
    graph = imported(tmp_path, spec, full_csv="id,v,y\n5,1.5,1\n6,2.5,0\n", bare_csv="id,v,y\n")
    assert graph.nodes["a"].ids.tolist() == [5, 6]
    assert graph.x.tolist() == [[1.5], [2.5]]
    assert graph.y.tolist() == [1, 0]


def test_an_integer_used_twice_is_not_rounded(tmp_path):
    spec = nodes(files="n.csv", features=["v"], fields=["v"])
    graph = imported(tmp_path, spec, n_csv="id,v\n1,9007199254740993\n")
    assert graph.nodes["a"].fields["v"].tolist() == [9007199254740993]


def test_a_file_named_twice_is_read_once(tmp_path):
    graph = imported(tmp_path, nodes(files=["n.csv", "*.csv"], fields=["v"]), n_csv="id,v\n1,2\n")
    assert graph.num_nodes == 1


@pytest.mark.parametrize(
    ("column", "keys", "sentence"),
    [
        (
            pa.array([[1.0], [2.0]]),
            {"features": [{"column": "c", "categorical": "one-hot"}]},
            "wrong-type",
        ),
        (pa.array([b"\xff", b"a"]), {"features": [{"column": "c", "categorical": "codes"}]}, "wrong-type"),
        (pa.array([[10**14], [1]]), {"label": {"column": "c", "kind": "multi-label"}}, "too-large 0"),
        (pa.array([[1], [0]]), {"label": {"columns": ["c"], "kind": "multi-label"}}, "wrong-type"),
        (pa.array([[1], [0]]), {"fields": [{"name": "f", "columns": ["c", "c"]}]}, "wrong-type"),
    ],
)
def test_columns_of_unexpected_types_get_a_sentence(tmp_path, column, keys, sentence):
    pq.write_table(pa.table({"id": [1, 2], "c": column}), tmp_path / "n.parquet")
    with refused(sentence):
        imported(tmp_path, nodes(files="n.parquet", **keys))
    assert not (tmp_path / "out").exists()


def test_floating_multi_labels_are_taken(tmp_path):
    pq.write_table(pa.table({"id": [1, 2], "c": pa.array([[0.0, 2.0], [1.0]])}), tmp_path / "n.parquet")
    graph = imported(tmp_path, nodes(files="n.parquet", label={"column": "c", "kind": "multi-label"}))
    assert graph.y.tolist() == [[1, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize("files", ["a**b.csv", "~nobody-of-that-name/x.csv"])
def test_odd_patterns_get_a_sentence(tmp_path, files):
    with refused("invalid-value"):
        imported(tmp_path, nodes(files=files))


def test_odd_yaml_and_ratios_get_a_sentence(tmp_path):
    (tmp_path / "spec.yaml").write_text("name: 2020-13-45\nnodes: []\n")
    with refused("damaged-file spec.yaml"):
        import_tables(tmp_path / "spec.yaml", tmp_path / "out")
    with refused("invalid-document ratios"):
        imported(tmp_path, nodes(files="n.csv", split={"ratios": [float("nan"), 0.1, 0.1]}), n_csv="id\n1\n")
