"""Tables with a relation column: an edge type for each of its words."""

import numpy as np
import pytest

from penstock.graph.tables import import_tables
from refusals import refused

SPEC = """
name: facts
nodes:
  - type: entity
edges:
  - {type: [entity, fact, entity], files: facts.csv, source: s, destination: o, relation: p, split: {column: fold}%s}
"""
TABLE = "s,p,o,fold\na,likes,b,train\nb,likes,c,train\na,has__part,c,\nc,likes,a,val\nb,owns,a,test\na,likes,b,train\n"


def imported(folder, more="", table=TABLE):
    (folder / "spec.yaml").write_text(SPEC % more)
    (folder / "facts.csv").write_text(table)
    return import_tables(folder / "spec.yaml", folder / "graph")


def test_each_word_is_an_edge_type(tmp_path):
    graph = imported(tmp_path)
    assert [kind[1] for kind in graph.edges] == ["likes", "r1", "owns"]
    likes, part, owns = graph.edges.values()
    # a, b, c are numbered as they come.
    np.testing.assert_array_equal(likes.edge_index(), [[0, 0, 1], [1, 1, 2]])
    np.testing.assert_array_equal(part.edge_index(), [[0], [2]])
    np.testing.assert_array_equal(likes.held_out["val"], [[2, 0]])
    assert owns.count == 0 and owns.held_out["test"].tolist() == [[1, 0]]


def test_reverses_and_duplicates(tmp_path):
    graph = imported(tmp_path, ", reverse: true, deduplicate: true")
    assert graph.edges["entity", "likes", "entity"].count == 2
    np.testing.assert_array_equal(graph.edges["entity", "rev-likes", "entity"].edge_index(), [[1, 2], [0, 1]])
    assert not graph.edges["entity", "rev-likes", "entity"].held_out


@pytest.mark.parametrize(
    "more, table, says",
    [
        (", weight: w", TABLE, "invalid-document relation weight"),
        (", reverse: back", TABLE, "invalid-document reverse"),
        ("", TABLE.replace("b,owns", "b,"), "missing-data facts.csv 5 relation"),
        ("", TABLE.replace("s,p,o", "s,q,o"), "field-missing p"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, more, table, says):
    with refused(says):
        imported(tmp_path, more, table)
    assert not (tmp_path / "graph").exists()
