"""Every bad input: one sentence with the file, the row and the column, and nothing left behind."""

import gzip
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tables_workbench import FOLLOWS, USERS, Workbench


@pytest.fixture
def people(bench: Workbench) -> Workbench:
    bench.table("users.parquet", {"id": ["a", "b", "c"], "v": [1.0, 2.0, 3.0]})
    bench.table("follows.parquet", {"a": ["a"], "b": ["b"]})
    return bench


def _has(sentence: str, *parts: str) -> None:
    for part in parts:
        assert part in sentence, sentence


def test_missing_column(people: Workbench) -> None:
    _has(people.sentence([{**USERS, "features": ["age"]}]), "users.parquet", "'age'", "its columns are id, v")


def test_duplicate_id_names_both_rows(bench: Workbench) -> None:
    bench.table("u/1.parquet", {"id": ["a", "b"]})
    bench.table("u/2.parquet", {"id": ["c", "b"]})
    sentence = bench.sentence([{**USERS, "files": "u/*.parquet"}])
    _has(sentence, "2.parquet, row 2, column 'id'", "'b'", "1.parquet, row 2")


def test_dangling_names_the_first_five_and_the_total(people: Workbench) -> None:
    people.table("follows.parquet", {"a": ["a", *(f"q{i}" for i in range(7))], "b": ["b"] * 8})
    sentence = people.sentence([USERS], [FOLLOWS])
    _has(sentence, "7 edges", "user 'q0' in ", "follows.parquet, row 2;", "'q4'", "dangling: drop")
    assert "q5" not in sentence


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ([1.0, float("nan"), 2.0], "the value is nan"),
        ([1.0, float("inf"), 2.0], "the value is inf"),
        ([1.0, 1e300, 2.0], "the value is inf"),
        ([1.0, None, 2.0], "the value is missing"),
        ([[1.0], [1.0, 2.0], [1.0]], "the list has 2 values"),
        ([[1.0], [None], [1.0]], "the list contains a null"),
        ([[1.0], None, [1.0]], "the value is missing"),
        ([[1.0, 2.0], [float("nan"), 2.0], [1.0, 2.0]], "the value is nan"),
    ],
)
def test_bad_feature_values(bench: Workbench, values: list[Any], what: str) -> None:
    bench.table("users.parquet", {"id": [1, 2, 3], "v": values})
    _has(bench.sentence([{**USERS, "features": ["v"]}]), "users.parquet, row 2, column 'v'", what)


def test_bad_feature_value_of_an_edge(people: Workbench) -> None:
    people.table("follows.parquet", {"a": ["a", "b"], "b": ["b", "a"], "w": [1.0, None]})
    _has(
        people.sentence([USERS], [{**FOLLOWS, "weight": "w"}]),
        "follows.parquet, row 2, column 'w'",
        "missing",
    )


def test_feature_of_words(people: Workbench) -> None:
    people.table("users.parquet", {"id": [1], "v": ["tall"]})
    sentence = people.sentence([{**USERS, "features": ["v"]}])
    _has(sentence, "'v' of ", "users.parquet", "not numeric", "'tall'", "row 1")


def test_feature_of_words_in_csv(bench: Workbench) -> None:
    bench.text("users.csv", "id,v\n1,2.5\n2,tall\n")
    sentence = bench.sentence([{**USERS, "files": "users.csv", "features": ["v"]}])
    _has(sentence, "users.csv, row 2, column 'v'", "'tall' is not a number")


def test_feature_of_words_in_json(bench: Workbench) -> None:
    bench.text("users.jsonl", '{"id": 1, "v": 2.5}\n{"id": 2, "v": "tall"}\n')
    sentence = bench.sentence([{**USERS, "files": "users.jsonl", "features": ["v"]}])
    _has(sentence, "users.jsonl", "row 2", "column 'v'", "number to string")


def test_word_missing_in_one_hot(bench: Workbench) -> None:
    bench.table("users.parquet", {"id": [1, 2], "w": ["a", None]})
    sentence = bench.sentence([{**USERS, "features": [{"column": "w", "categorical": "one-hot"}]}])
    _has(sentence, "users.parquet, row 2, column 'w'", "missing")


def test_word_not_among_the_categories(bench: Workbench) -> None:
    bench.table("users.parquet", {"id": [1, 2], "w": ["a", "q"]})
    feature = {"column": "w", "categorical": "codes", "categories": ["a", "b"]}
    _has(bench.sentence([{**USERS, "features": [feature]}]), "row 2, column 'w'", "'q'", "categories")


@pytest.mark.parametrize(
    ("values", "label", "what"),
    [
        ([0, 5], {"classes": 5}, "label 5 is out of range"),
        ([0, -1], {}, "label -1 is not an integer of 0 or more"),
        ([0.0, 1.5], {}, "label 1.5 is not an integer"),
        ([[0], [7]], {"kind": "multi-label", "classes": 3}, "label 7 is out of range"),
        ([[0], [-2]], {"kind": "multi-label"}, "label -2"),
        ([1.0, float("inf")], {"kind": "float"}, "infinite"),
    ],
)
def test_bad_labels(bench: Workbench, values: list[Any], label: dict[str, Any], what: str) -> None:
    bench.table("users.parquet", {"id": [1, 2], "l": values})
    _has(
        bench.sentence([{**USERS, "label": {"column": "l", **label}}]),
        "users.parquet, row 2, column 'l'",
        what,
    )


@pytest.mark.parametrize(("values", "kind"), [([[1], [2]], "class"), (["a", "b"], "float"), ([1, 2], "multi-label")])
def test_label_of_another_kind(bench: Workbench, values: list[Any], kind: str) -> None:
    bench.table("users.parquet", {"id": [1, 2], "l": values})
    _has(bench.sentence([{**USERS, "label": {"column": "l", "kind": kind}}]), "'l'", "users.parquet")


def test_flags_are_0_or_1(bench: Workbench) -> None:
    bench.table("users.parquet", {"id": [1, 2], "p": [0, 1], "q": [1, 3]})
    sentence = bench.sentence([{**USERS, "label": {"columns": ["p", "q"], "kind": "multi-label"}}])
    _has(sentence, "row 2, column 'q'", "3", "neither 0 nor 1")


def test_unknown_split_value(bench: Workbench) -> None:
    bench.table("users.parquet", {"id": [1, 2], "f": ["train", "dev"]})
    sentence = bench.sentence([{**USERS, "split": {"column": "f"}}])
    _has(sentence, "users.parquet, row 2, column 'f'", "'dev'", "train, val, test")


def test_empty_tables(bench: Workbench) -> None:
    bench.table("users.parquet", {"id": pa.array([], pa.string())})
    _has(bench.sentence([USERS]), "users.parquet has no rows", "node type user")
    bench.text("users.csv", "id\n")
    _has(bench.sentence([{**USERS, "files": "users.csv"}]), "users.csv has no rows")
    bench.text("users.csv", "")
    _has(bench.sentence([{**USERS, "files": "users.csv"}]), "users.csv", "Empty CSV file")
    bench.text("users.jsonl", "")
    _has(bench.sentence([{**USERS, "files": "users.jsonl"}]), "users.jsonl")


def test_no_file_matches(bench: Workbench) -> None:
    _has(
        bench.sentence([{**USERS, "files": "u/*.parquet"}]),
        "'u/*.parquet'",
        "node type user",
        str(bench.folder),
    )
    _has(bench.sentence([{**USERS, "files": ["none.csv"]}]), "'none.csv'")


def test_a_folder_without_tables(bench: Workbench) -> None:
    bench.text("u/_SUCCESS", "")
    bench.text("u/notes.txt", "")
    _has(bench.sentence([{**USERS, "files": "u"}]), "No file matches 'u' of node type user", str(bench.folder))


def test_unknown_format(bench: Workbench) -> None:
    bench.text("users.xls", "x")
    _has(bench.sentence([{**USERS, "files": "users.xls"}]), "users.xls", "format")
    bench.table("users.csv", {"id": [1]})
    bench.table("users.parquet", {"id": [2]})
    _has(bench.sentence([{**USERS, "files": ["users.csv", "users.parquet"]}]), "different formats")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("users.parquet", b"no parquet"),
        ("users.parquet", b""),
        ("users.csv.gz", b"no gzip"),
        ("users.csv.gz", gzip.compress(b"id,v\n" + b"1,2\n" * 10000, mtime=0)[:-20]),
        ("users.csv", b"id,v\n1,2\n1,2,3\n"),
        ("users.csv", b"id,v\n\xff\xfe,1\n"),
        ("users.jsonl", b'{"id": 1\n'),
        ("users.jsonl", b"[1]\n"),
    ],
)
def test_damaged_files(bench: Workbench, name: str, content: bytes) -> None:
    bench.text(name, content)
    _has(bench.sentence([{**USERS, "files": name}]), name)


def test_damage_deep_in_a_parquet_file(bench: Workbench) -> None:
    bench.table("users.parquet", {"id": np.random.default_rng(0).permutation(200_000)})
    path = bench.folder / "users.parquet"
    content = bytearray(path.read_bytes())
    content[1000:300_000] = bytes(299_000)
    path.write_bytes(bytes(content))
    _has(bench.sentence([USERS]), "users.parquet")


def test_csv_row_too_long_names_the_row(bench: Workbench) -> None:
    bench.text("users.csv", "id,v\n" + "1,2\n" * 5 + "1,2,3\n")
    _has(bench.sentence([{**USERS, "files": "users.csv"}]), "users.csv, row 6", "Expected 2 columns, got 3")


def test_missing_id(bench: Workbench) -> None:
    bench.table("users.parquet", {"id": ["a", None]})
    _has(bench.sentence([USERS]), "users.parquet, row 2, column 'id'", "the id is missing")


def test_ids_of_another_type(bench: Workbench) -> None:
    bench.table("users.parquet", {"id": [1.5, 2.5]})
    _has(bench.sentence([USERS]), "'id' of ", "double", "strings or integers")


def test_ends_that_cannot_be_cast(bench: Workbench) -> None:
    bench.table("users.parquet", {"id": [1, 2]})
    bench.table("follows.parquet", {"a": ["1", "x"], "b": ["2", "1"]})
    _has(bench.sentence([USERS], [FOLLOWS]), "follows.parquet, row 2, column 'a'", "'x' is not a 64-bit integer")
    bench.table("users.parquet", {"id": pa.array([1, 2**64 - 1], pa.uint64())})
    _has(bench.sentence([USERS]), "row 2", "18446744073709551615")


def test_time_must_be_whole(people: Workbench) -> None:
    people.table("follows.parquet", {"a": ["a", "b"], "b": ["b", "c"], "t": [1.0, 1.5]})
    _has(
        people.sentence([USERS], [{**FOLLOWS, "time": "t"}]),
        "follows.parquet, row 2, column 't'",
        "whole number",
    )


def test_field_that_does_not_fit(people: Workbench) -> None:
    people.table("users.parquet", {"id": [1, 2], "v": [1, 300]})
    _has(
        people.sentence([{**USERS, "fields": [{"column": "v", "dtype": "int8"}]}]),
        "row 2, column 'v'",
        "300",
        "int8",
    )


def test_one_name_for_two_fields(people: Workbench) -> None:
    _has(
        people.sentence([{**USERS, "features": ["v"], "fields": [{"column": "v", "name": "x"}]}]),
        "'x'",
        "user",
    )


def test_ambiguous_column(bench: Workbench) -> None:
    bench.text("users.csv", "id,v,v\n1,2,3\n")
    _has(bench.sentence([{**USERS, "files": "users.csv", "features": ["v"]}]), "2 columns named 'v'")


def test_existing_output_is_refused_before_any_reading(bench: Workbench) -> None:
    bench.text("out/keep.txt", "mine")
    _has(bench.sentence([USERS]), "out exists already")
    assert (bench.out / "keep.txt").read_text() == "mine"


def test_a_missing_edge_file_is_told_before_any_reading(people: Workbench) -> None:
    people.table("users.parquet", {"id": ["a", "a"]})
    _has(people.sentence([USERS], [{**FOLLOWS, "files": "none.csv"}]), "'none.csv' of edge type user__follows__user")


def test_a_later_file_with_other_columns(bench: Workbench) -> None:
    bench.text("u/1.csv", "id,v\n1,2\n")
    bench.text("u/2.csv", "id,w\n2,2\n")
    _has(bench.sentence([{**USERS, "files": "u/*.csv", "features": ["v"]}]), "2.csv has no column 'v'")
