"""Files of triples: one file, a folder of splits, names and mistakes."""

import gzip

import numpy as np
import pytest

import penstock as ps
from penstock.graph.convert import load
from refusals import refused

TRAIN = "anna\tknows\tben\nben\tknows\tanna\nanna\t/people/person/likes\tcake\n"


def named(graph, relation):
    """Pairs of ids of a relation's edges."""
    ids = graph.nodes["entity"].ids
    sources, destinations = graph.edges["entity", relation, "entity"].edge_index()
    return {
        (str(ids.take(sources).to_arrow()[i]), str(ids.take(destinations).to_arrow()[i])) for i in range(len(sources))
    }


def test_one_file(tmp_path):
    (tmp_path / "triples.tsv").write_text(TRAIN)
    graph = ps.load(tmp_path / "triples.tsv")
    assert graph.nodes["entity"].count == 3 and graph.num_edges == 3 and graph.name == "triples"
    assert [kind[1] for kind in graph.edges] == ["knows", "/people/person/likes"]
    assert named(graph, "knows") == {("anna", "ben"), ("ben", "anna")}
    assert named(graph, "/people/person/likes") == {("anna", "cake")}
    again = graph.save(tmp_path / "graph")
    assert named(again, "/people/person/likes") == {("anna", "cake")}


@pytest.mark.parametrize("suffix, mark", [(".txt", "\t"), (".csv", ","), (".txt", " "), (".tsv.gz", "\t")])
def test_a_folder_of_splits(tmp_path, suffix, mark):
    texts = {"train": TRAIN, "valid": "ben\tknows\tcarl\n", "test": "carl\tknows\tanna\nanna\teats\tcake\n"}
    for split, text in texts.items():
        data = text.replace("\t", mark).encode()
        (tmp_path / f"{split}{suffix}").write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    (tmp_path / "README").write_text("ignored")
    for source in (tmp_path, tmp_path / f"train{suffix}"):
        graph = load(source)
        assert graph.nodes["entity"].count == 4 and graph.num_edges == 3
        knows, eats = graph.edges["entity", "knows", "entity"], graph.edges["entity", "eats", "entity"]
        np.testing.assert_array_equal(knows.held_out["val"], [[1, 3]])
        np.testing.assert_array_equal(knows.held_out["test"], [[3, 0]])
        assert eats.count == 0 and len(eats.held_out["test"]) == 1


def test_a_header_is_left_out_and_odd_names_are_numbered(tmp_path):
    (tmp_path / "t.csv").write_text('head,relation,tail\na,has__two,b\na,r0,"c, d"\n')
    graph = load(tmp_path / "t.csv")
    assert [kind[1] for kind in graph.edges] == ["r0-", "r0"]
    assert graph.origin["renamed"] == {"r0-": "has__two"}
    assert named(graph, "r0") == {("a", "c, d")}


@pytest.mark.parametrize(
    "text, says",
    [
        ("a\tb\n", "wrong-file columns"),
        ("a\tb\tc\td\n", "wrong-file columns"),
        ("a\tb\tc\na\tb\n", "wrong-file triples"),
        ("a\tb\tc\na\t\tc\n", "missing-data 2 relation"),
        ("", "missing-data empty"),
    ],
)
def test_what_is_not_triples_is_refused(tmp_path, text, says):
    (tmp_path / "t.tsv").write_text(text)
    with refused(says):
        load(tmp_path / "t.tsv")


def test_two_files_of_one_split_are_refused(tmp_path):
    for name in ("train.txt", "train.tsv"):
        (tmp_path / name).write_text(TRAIN)
    with refused("duplicate train.tsv train.txt"):
        load(tmp_path)
