"""OGB folders, written small in each of OGB's layouts."""

import gzip
import os

import numpy as np
import pytest

from penstock.graph.convert import from_ogb
from refusals import refused

torch = pytest.importorskip("torch")

EDGES = ("node", "to", "node")


def table(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(",".join(str(value) for value in np.atleast_1d(row)) + "\n" for row in rows)


def vertex_splits(folder, rows=((0, 2), (1,), (3,))):
    for name, numbers in zip(("train", "valid", "test"), rows, strict=True):
        table(folder / f"{name}.csv.gz", numbers)


def text_folder(folder, edges=((0, 1), (1, 2), (3, 1)), **files):
    """A set of four vertices in the .csv.gz layout of one type."""
    raw = folder / "raw"
    table(raw / "num-node-list.csv.gz", [4])
    table(raw / "num-edge-list.csv.gz", [len(edges)])
    table(raw / "edge.csv.gz", edges)
    table(raw / "node-feat.csv.gz", [[1, 0.5], [2, -1], [3, 1e-3], [4, 0]])
    table(raw / "node-label.csv.gz", [0, 1, "nan", 2])
    for name, rows in files.items():
        table(raw / f"{name}.csv.gz", rows)
    return folder


def node_set(folder, **files):
    vertex_splits(text_folder(folder, **files) / "split" / "time")
    return folder


def test_one_type_as_text(tmp_path):
    graph = from_ogb(node_set(tmp_path / "ogbn_arxiv", node_year=[2001, 2002, 2003, 2004]))
    assert graph.name == "ogbn-arxiv" and graph.origin["inverse"] is False
    assert graph.indptr.tolist() == [0, 0, 2, 3, 3] and graph.indices.tolist() == [0, 3, 1]
    assert graph.x.dtype == np.float32 and graph.x[:, 1].tolist() == np.float32([0.5, -1, 1e-3, 0]).tolist()
    assert graph.y.tolist() == [0, 1, -1, 2] and graph.y.dtype == np.int64
    assert graph.nodes["node"].fields["node_year"].tolist() == [2001, 2002, 2003, 2004]
    assert {key: rows.tolist() for key, rows in graph.nodes["node"].splits.items()} == {
        "train": [0, 2],
        "val": [1],
        "test": [3],
    }


@pytest.mark.parametrize("name", ["ogbn_products", "ogbn-products", "ogbn_products_pyg", "products", "ogbl_ddi"])
def test_undirected_sets_get_inverse_edges(tmp_path, name):
    graph = from_ogb(node_set(tmp_path / name, **{"edge-feat": [[10, 0.5], [11, 0.5], [12, 0.5]]}))
    pairs = graph.edges[EDGES].edge_index().T.tolist()
    assert sorted(pairs) == [[0, 1], [1, 0], [1, 2], [1, 3], [2, 1], [3, 1]]
    stored = {(0, 1): 10, (1, 2): 11, (3, 1): 12}
    values = graph.edges[EDGES].fields["edge_attr"][:, 0].tolist()
    assert values == [stored.get((s, d)) or stored[d, s] for s, d in pairs]


def test_inverse_can_be_overridden(tmp_path):
    folder = node_set(tmp_path / "ogbn_products")
    assert from_ogb(folder, inverse=False).num_edges == 3
    assert from_ogb(node_set(tmp_path / "mine"), inverse=True).num_edges == 6


def test_proteins(tmp_path):
    """Several labels a vertex, no features, species under its old name."""
    labels = [[0, 1, 0], [1, 1, 1], [0, 0, "nan"], [1, 0, 0]]
    folder = node_set(tmp_path / "ogbn_proteins", **{"node-label": labels, "species": [9606, 10090, 9606, 4932]})
    (folder / "raw" / "node-feat.csv.gz").unlink()
    graph = from_ogb(folder)
    assert graph.y.tolist() == [[0, 1, 0], [1, 1, 1], [0, 0, -1], [1, 0, 0]]
    assert graph.nodes["node"].fields["node_species"].tolist() == [9606, 10090, 9606, 4932]
    assert "x" not in graph.nodes["node"].fields


def test_values_that_are_no_classes_stay_numbers(tmp_path):
    graph = from_ogb(node_set(tmp_path / "set", **{"node-label": [0.5, 1, "nan", 2], "node_score": [1, 2, 3, 0.25]}))
    assert graph.y.dtype == np.float32 and graph.y[0] == 0.5 and np.isnan(graph.y[2])
    assert graph.nodes["node"].fields["node_score"].tolist() == [1, 2, 3, 0.25]


def typed_text_folder(folder):
    raw = folder / "raw"
    table(raw / "num-node-dict.csv.gz", [["author", "paper"], [2, 3]])
    table(raw / "triplet-type-list.csv.gz", [["author", "writes", "paper"], ["paper", "cites", "paper"]])
    for name, pairs in {
        "author___writes___paper": [(0, 2), (1, 0)],
        "paper___cites___paper": [(2, 1)],
    }.items():
        table(raw / "relations" / name / "edge.csv.gz", pairs)
        table(raw / "relations" / name / "num-edge-list.csv.gz", [len(pairs)])
        table(raw / "relations" / name / "edge_reltype.csv.gz", [name.startswith("paper") * 1] * len(pairs))
    return folder


def test_several_types_as_text(tmp_path):
    folder = typed_text_folder(tmp_path / "ogbn_mag")
    table(folder / "raw" / "node-feat" / "paper" / "node-feat.csv.gz", [[1, 2], [3, 4], [5, 6]])
    table(folder / "raw" / "node-feat" / "paper" / "node_year.csv.gz", [2010, 2011, 2012])
    table(folder / "raw" / "node-label" / "paper" / "node-label.csv.gz", [4, 5, 4])
    vertex_splits(folder / "split" / "time" / "paper", ([2, 0], [1], []))
    graph = from_ogb(folder)
    assert graph.node_types == ["author", "paper"]
    assert graph.edges["author", "writes", "paper"].indices.tolist() == [1, 0]
    assert graph.nodes["paper"].x.dtype == np.float32 and graph.nodes["paper"].y.tolist() == [4, 5, 4]
    assert graph.nodes["paper"].fields["node_year"].tolist() == [2010, 2011, 2012]
    assert graph.split("train", "paper").tolist() == [0, 2] and graph.split("test", "paper").tolist() == []
    assert graph.nodes["author"].splits == {}
    with refused("unsupported-combination"):
        from_ogb(folder, inverse=True)


def test_one_type_as_archives(tmp_path):
    folder = tmp_path / "ogbn_papers100M"
    (folder / "raw").mkdir(parents=True)
    arrays = {"edge_index": np.array([[0, 1, 3], [1, 2, 1]]), "num_nodes_list": [4], "num_edges_list": [3]}
    features = np.arange(8, dtype=np.float16).reshape(4, 2)
    np.savez(folder / "raw" / "data.npz", **arrays, node_feat=features, node_year=np.array([[1], [2], [3], [4]]))
    np.savez(folder / "raw" / "node-label.npz", node_label=np.float32([[0], [np.nan], [1], [2]]))
    split = {"train": np.array([0, 2]), "valid": np.array([1]), "test": np.array([3])}
    (folder / "split" / "time").mkdir(parents=True)
    torch.save(split, folder / "split" / "time" / "split_dict.pt")
    graph = from_ogb(folder)
    assert graph.indices.tolist() == [0, 3, 1] and graph.indices.dtype == np.int32
    assert graph.x.dtype == np.float16 and graph.y.tolist() == [0, -1, 1, 2]
    assert graph.nodes["node"].fields["node_year"].tolist() == [1, 2, 3, 4]
    assert graph.split("val").tolist() == [1]


def test_several_types_as_archives(tmp_path):
    raw = tmp_path / "ogbn_typed" / "raw"
    raw.mkdir(parents=True)
    np.savez(raw / "num_nodes_dict.npz", a=np.array([2]), b=np.array([3]))
    np.savez(raw / "num_edges_dict.npz", a___to___b=np.array([2]))
    np.savez(raw / "edge_index_dict.npz", a___to___b=np.array([[1, 0], [0, 2]]))
    np.savez(raw / "node_feat_dict.npz", b=np.ones((3, 2), np.float32))
    np.savez(raw / "edge_time_dict.npz", a___to___b=np.array([[7], [8]]))
    np.savez(raw / "node-label.npz", a=np.array([[0], [1]]))
    (raw.parent / "split" / "random").mkdir(parents=True)
    torch.save(
        {
            "train": {"a": np.array([0])},
            "valid": {"a": torch.tensor([1])},
            "test": {"a": np.array([], np.int64)},
        },
        raw.parent / "split" / "random" / "split_dict.pt",
    )
    graph = from_ogb(raw.parent)
    edges = graph.edges["a", "to", "b"]
    assert edges.indptr.tolist() == [0, 1, 1, 2] and edges.fields["edge_time"].tolist() == [7, 8]
    assert graph.nodes["b"].x.shape == (3, 2) and graph.nodes["a"].y.tolist() == [0, 1]
    assert graph.split("val", "a").tolist() == [1]


def link_splits(folder, valid, test, legacy=False):
    folder.mkdir(parents=True)
    for name, arrays in (("train", {"edge": torch.zeros(1, 2)}), ("valid", valid), ("test", test)):
        torch.save(arrays, folder / f"{name}.pt", _use_new_zipfile_serialization=not legacy)


def test_links_as_pairs(tmp_path):
    folder = text_folder(tmp_path / "ogbl_collab", edge_weight=[1, 2, 3], edge_year=[1990, 1991, 1992])
    valid = {"edge": np.array([[0, 2]]), "weight": np.array([1]), "edge_neg": torch.tensor([[0, 3], [2, 3]])}
    link_splits(folder / "split" / "time", valid, {"edge": torch.tensor([[3, 2], [0, 3]])})
    graph = from_ogb(folder)
    edges = graph.edges[EDGES]
    assert edges.count == 6 and sorted(edges.fields["edge_weight"].tolist()) == [1, 1, 2, 2, 3, 3]
    assert {key: pairs.tolist() for key, pairs in edges.held_out.items()} == {
        "val": [[0, 2]],
        "val_negative": [[0, 3], [2, 3]],
        "test": [[3, 2], [0, 3]],
    }
    assert edges.held_out["val"].dtype == np.int64


def test_links_with_negative_targets(tmp_path):
    folder = text_folder(tmp_path / "ogbl_citation2")
    links = {
        "source_node": np.array([0, 1]),
        "target_node": np.array([3, 3]),
        "target_node_neg": np.array([[1, 2], [0, 2]]),
    }
    link_splits(folder / "split" / "time", links, links)
    held_out = from_ogb(folder).edges[EDGES].held_out
    assert held_out["test"].tolist() == [[0, 3], [1, 3]]
    assert held_out["test_negative"].tolist() == [[0, 1], [0, 2], [1, 0], [1, 2]]


def triples(head, relation, tail, **more):
    return {"head": np.array(head), "relation": np.array(relation), "tail": np.array(tail), **more}


def test_knowledge_graph_of_one_type(tmp_path):
    folder = text_folder(tmp_path / "ogbl_wikikg2", edge_reltype=[0, 2, 0])
    negatives = {"head_neg": np.zeros((2, 3), np.int64)}
    link_splits(folder / "split" / "time", triples([0, 1], [2, 3], [1, 2], **negatives), triples([3], [0], [2]))
    graph = from_ogb(folder)
    assert [relation for _, relation, _ in graph.edge_types] == ["r0", "r1", "r2", "r3"]
    assert [edges.count for edges in graph.edges.values()] == [2, 0, 1, 0]
    assert [edges.held_out["val"].tolist() for edges in graph.edges.values()] == [[], [], [[0, 1]], [[1, 2]]]
    assert graph.edges["node", "r0", "node"].held_out["test"].tolist() == [[3, 2]]


def test_knowledge_graph_of_several_types(tmp_path):
    folder = typed_text_folder(tmp_path / "ogbl_biokg")
    valid = triples([1, 0], [0, 1], [2, 2], head_type=["author", "paper"], tail_type=["paper", "paper"])
    link_splits(folder / "split" / "random", valid, triples([], [], []))
    graph = from_ogb(folder)
    assert graph.edges["author", "writes", "paper"].held_out["val"].tolist() == [[1, 2]]
    assert graph.edges["paper", "cites", "paper"].held_out["val"].tolist() == [[0, 2]]


def test_arrays_saved_by_old_numpy_are_read(tmp_path):
    folder = text_folder(tmp_path / "ogbl_citation2")
    links = {"source_node": np.array([0]), "target_node": np.array([3])}
    link_splits(folder / "split" / "time", links, links, legacy=True)
    for path in (folder / "split" / "time").glob("*.pt"):
        path.write_bytes(path.read_bytes().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"))
    assert from_ogb(folder).edges[EDGES].held_out["val"].tolist() == [[0, 3]]


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_nothing_in_a_file_is_run(tmp_path):
    folder = text_folder(tmp_path / "ogbl_ppa")
    link_splits(folder / "split" / "throughput", {"edge": Harmful(str(tmp_path / "harm"))}, {})
    with refused("untrusted-code valid.pt"):
        from_ogb(folder)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"edge": [(0, 1), (1, 2), (3, 9)]}, "id-out-of-range edge.csv.gz 9 0 3"),
        ({"edge": [(0, 1), (1, 2)]}, "damaged-file edge.csv.gz 2 3"),
        ({"edge": [(0, 1), (1, 2), (3, 1), (0, 0)]}, "damaged-file edge.csv.gz 4 3"),
        ({"edge": [(0, 1, 2)] * 3}, "damaged-file edge.csv.gz 3 2"),
        ({"edge": [(0, "x"), (1, 2), (3, 1)]}, "damaged-file edge.csv.gz"),
        ({"node-feat": [[1, 2], [3], [4, 5], [6, 7]]}, "damaged-file node-feat.csv.gz"),
        ({"node-feat": [[1, 2]]}, "damaged-file node-feat.csv.gz 1 4"),
        ({"num-node-list": [4, 5]}, "wrong-file 2"),
    ],
)
def test_bad_tables_are_sentences(tmp_path, files, sentence):
    folder = node_set(tmp_path / "set", **files)
    with refused(sentence):
        from_ogb(folder)


def test_bad_folders_are_sentences(tmp_path):
    with refused("wrong-file raw/"):
        from_ogb(tmp_path)
    folder = text_folder(tmp_path / "set")
    with refused("split-missing"):
        from_ogb(folder)
    (folder / "split" / "empty").mkdir(parents=True)
    with refused("split-missing train.csv.gz train.pt split_dict.pt"):
        from_ogb(folder)
    vertex_splits(folder / "split" / "time", ([0], [1], [4]))
    with refused("option-missing"):
        from_ogb(folder)
    with refused("unknown-name random"):
        from_ogb(folder, scheme="random")
    with refused("id-out-of-range 4 0 3"):
        from_ogb(folder, scheme="time")
    (folder / "raw" / "edge.csv.gz").write_bytes(b"not gzip")
    with refused("damaged-file edge.csv.gz"):
        from_ogb(folder, scheme="time")


def test_truncated_files_are_sentences(tmp_path):
    folder = node_set(tmp_path / "set")
    path = folder / "raw" / "node-feat.csv.gz"
    table(path, np.random.default_rng(0).random((4, 500)))
    path.write_bytes(path.read_bytes()[:-2000])
    with refused("damaged-file node-feat.csv.gz"):
        from_ogb(folder)
    saved = text_folder(tmp_path / "links")
    link_splits(saved / "split" / "time", {}, {})
    (saved / "split" / "time" / "valid.pt").write_bytes(b"PK\x03\x04 cut short")
    with refused("damaged-file valid.pt"):
        from_ogb(saved)


def test_unknown_link_layouts_are_sentences(tmp_path):
    folder = text_folder(tmp_path / "set")
    link_splits(folder / "split" / "a", {"arcs": np.zeros((1, 2))}, {})
    with refused("wrong-file source_node"):
        from_ogb(folder)
    folder = text_folder(tmp_path / "other")
    link_splits(folder / "split" / "a", {"edge": torch.zeros(3, 4, dtype=torch.long)}, {})
    with refused("damaged-file 3 4 [m 2]"):
        from_ogb(folder)
