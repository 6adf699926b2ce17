"""What a spec may say, and what is said back when it says something else."""

from typing import Any

import pytest
from tables_workbench import FOLLOWS, USERS, Workbench

from penstock.graph.tables.spec import read_spec


@pytest.mark.parametrize(
    ("nodes", "edges", "parts"),
    [
        ([{**USERS, "featurs": ["v"]}], [], ["nodes[0]", "'featurs'", "did you mean 'features'?"]),
        ([{**USERS, "features": [{"colum": "v"}]}], [], ["nodes[0].features[0]", "did you mean 'column'?"]),
        ([{**USERS, "zzz": 1}], [], ["nodes[0]", "'zzz'", "use one of files"]),
        ([{"files": "x.csv", "id": "id"}], [], ["nodes[0].type is missing"]),
        ([{"type": "user", "files": "x.csv"}], [], ["user has files and no id"]),
        ([{"type": "user", "features": ["v"]}], [], ["user has no files"]),
        ([USERS, USERS], [], ["node type user is given twice"]),
        ([{**USERS, "type": "a__b"}], [], ["'a__b'"]),
        ([USERS], [FOLLOWS, FOLLOWS], ["edge type user__follows__user is given twice"]),
        ([USERS], [{**FOLLOWS, "reverse": "follows"}], ["user__follows__user is given twice"]),
        ([USERS], [{**FOLLOWS, "type": ["user", "follows", "users"]}], ["'users'", "did you mean 'user'?"]),
        ([USERS], [{**FOLLOWS, "type": ["user", "follows"]}], ["edges[0].type[2] is missing"]),
        (
            [USERS],
            [{"type": ["user", "f", "user"], "files": "x.csv", "source": "a"}],
            ["edges[0].destination is missing"],
        ),
        ([USERS], [{k: v for k, v in FOLLOWS.items() if k != "files"}], ["user__follows__user has no files"]),
        ([USERS], [{**FOLLOWS, "dangling": "ignore"}], ["edges[0].dangling", "'ignore'"]),
        ([USERS], [{**FOLLOWS, "split": {"ratios": [0.8, 0.1, 0.1]}}], ["ratios are for vertices"]),
        ([USERS], [{**FOLLOWS, "undirected": True, "reverse": True}], ["needs no reverse"]),
        ([USERS], [{**FOLLOWS, "reverse": [1]}], ["edges[0].reverse"]),
        (
            [{**USERS, "split": {"ratios": [0.8, 0.3, 0.1]}}],
            [],
            ["nodes[0].split", "[0.8, 0.3, 0.1]", "at most 1"],
        ),
        ([{**USERS, "split": {"ratios": [0.8, 0.2]}}], [], ["nodes[0].split.ratios"]),
        ([{**USERS, "split": {}}], [], ["column", "ratios"]),
        ([{**USERS, "label": {"column": "l", "kind": "rank"}}], [], ["nodes[0].label.kind", "'rank'"]),
        ([{**USERS, "label": {"kind": "class"}}], [], ["either 'column: ...' or 'columns: [...]'"]),
        ([{**USERS, "label": {"columns": ["a"]}}], [], ["multi-label"]),
        (
            [{**USERS, "label": {"column": "l", "kind": "float", "classes": 3}}],
            [],
            ["float label has no classes"],
        ),
        ([{**USERS, "fields": [{"columns": ["a", "b"]}]}], [], ["needs a name"]),
        ([{**USERS, "fields": [{"column": "a", "dtype": "text"}]}], [], ["'text'", "float32"]),
        (
            [{**USERS, "features": [{"column": "a", "standardise": True, "categorical": "codes"}]}],
            [],
            ["exclude"],
        ),
        (
            [{**USERS, "features": [{"column": "a", "categories": ["x"]}]}],
            [],
            ["categories needs categorical"],
        ),
        ([], [], ["nodes", "at least 1"]),
    ],
)
def test_mistakes(bench: Workbench, nodes: list[Any], edges: list[Any], parts: list[str]) -> None:
    sentence = bench.sentence(nodes, edges)
    assert all(part in sentence for part in [str(bench.folder / "spec.yaml"), *parts]), sentence


def test_undirected_between_different_types(bench: Workbench) -> None:
    edge = {**FOLLOWS, "type": ["user", "buys", "item"], "undirected": True}
    sentence = bench.sentence([USERS, {"type": "item"}], [edge])
    assert "user__buys__item joins different node types" in sentence and "reverse: true" in sentence


@pytest.mark.parametrize("text", ["nodes: [\n", "nodes:\n\t- type: x", "just words", "", "- a\n- b"])
def test_not_a_spec(bench: Workbench, text: str) -> None:
    bench.text("spec.yaml", text)
    assert str(bench.folder / "spec.yaml") in bench.sentence_of(bench.folder / "spec.yaml")


def test_no_spec_at_all(bench: Workbench) -> None:
    assert "none.yaml does not exist" in bench.sentence_of(bench.folder / "none.yaml")


def test_short_forms(bench: Workbench) -> None:
    spec = read_spec(
        bench.spec([{**USERS, "features": ["age", 7], "label": "segment", "fields": ["since"]}], [FOLLOWS])
    )
    nodes = spec.nodes[0]
    assert nodes.files == ["users.parquet"]
    assert [feature.column for feature in nodes.features] == ["age", "7"]
    assert nodes.label is not None and (nodes.label.column, nodes.label.kind) == ("segment", "class")
    assert (nodes.fields[0].name, nodes.fields[0].column) == ("since", "since")
    assert spec.edges[0].reverse_type is None
