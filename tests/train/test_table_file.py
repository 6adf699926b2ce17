"""Tables of predictions and embeddings: what each extension holds."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import PenstockError
from penstock.train.run_files.run_folder import WRITERS, check_table_file, write_table

VECTORS = np.arange(6, dtype=np.float32).reshape(3, 2)


def table(rows=3):
    """Strings, numbers, vectors and lists of classes: all that predictions and embeddings are made of."""
    flat = pa.array(VECTORS[:rows].ravel())
    return pa.table(
        {
            "id": pa.array(["a", 'b,"', "ü"][:rows], pa.large_string()),
            "score": pa.array([0.5, float("nan"), -1.0][:rows], pa.float32()),
            "embedding": pa.FixedSizeListArray.from_arrays(flat, 2),
            "prediction": pa.array([[], [3], [1, 2]][:rows], pa.list_(pa.int32())),
        }
    )


def test_parquet(tmp_path):
    write_table(table(), tmp_path / "t.parquet")
    assert pq.read_table(tmp_path / "t.parquet")["embedding"].to_pylist() == VECTORS.tolist()


def test_csv_has_a_column_for_each_dimension(tmp_path):
    write_table(table(), tmp_path / "t.csv")
    head, *rows = csv.reader((tmp_path / "t.csv").read_text(encoding="utf-8").splitlines())
    assert head == ["id", "score", "embedding_0", "embedding_1", "prediction"]
    assert [row[0] for row in rows] == ["a", 'b,"', "ü"]
    assert [[float(row[2]), float(row[3])] for row in rows] == VECTORS.tolist()
    assert [row[4] for row in rows] == ["", "3", "1;2"]


def test_npz_needs_no_pickle(tmp_path):
    write_table(table(), tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz", allow_pickle=False) as found:
        assert found["id"].tolist() == ["a", 'b,"', "ü"]
        assert found["embedding"].tolist() == VECTORS.tolist()
        assert found["prediction"].tolist() == [3, 1, 2]
        assert found["prediction_indptr"].tolist() == [0, 0, 1, 3]
        assert np.isnan(found["score"][1])


def test_jsonl_is_valid_json_in_every_line(tmp_path):
    write_table(table(), tmp_path / "t.jsonl")
    lines = (tmp_path / "t.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert rows[1] == {"id": 'b,"', "score": None, "embedding": [2.0, 3.0], "prediction": [3]}
    assert rows[2]["prediction"] == [1, 2]


def rows_of_npz(path):
    with np.load(path) as found:
        return len(found["id"])


@pytest.mark.parametrize("suffix", WRITERS)
def test_many_rows_and_none(tmp_path, suffix):
    """Files are written in pieces; no row is lost between them, and an empty table has its columns."""
    many = pa.table({"id": np.arange(70_000), "embedding": pa.FixedSizeListArray.from_arrays(np.ones(70_000), 1)})
    write_table(many, tmp_path / f"many{suffix}")
    write_table(table(0), tmp_path / f"none{suffix}")
    count = {
        ".parquet": lambda path: pq.read_table(path).num_rows,
        ".csv": lambda path: len(path.read_text().splitlines()) - 1,
        ".npz": rows_of_npz,
        ".jsonl": lambda path: len(path.read_text().splitlines()),
    }[suffix]
    assert (count(tmp_path / f"many{suffix}"), count(tmp_path / f"none{suffix}")) == (70_000, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"many{suffix}", f"none{suffix}"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("t.xlsx", "has the extension '.xlsx', which does not name a format: use one of .parquet, .csv, .npz, .jsonl."),
        ("t.parquett", "did you mean '.parquet'?"),
        ("table", "has no extension, which does not name a format: use one of"),
    ],
)
def test_an_unknown_extension_is_refused(tmp_path, name, said):
    with pytest.raises(PenstockError) as caught:
        check_table_file(tmp_path / name, force=True)
    assert said in str(caught.value)
    check_table_file(tmp_path / "T.CSV", force=False)
