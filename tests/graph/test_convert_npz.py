"""NumPy archives: the shared real graphs, and small ones of every kind."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from penstock import StringIds
from penstock.graph.convert import from_npz
from penstock.graph.convert.edges import pair_array
from refusals import refused

DATA = Path(__file__).parents[3] / "shared" / "data"

# vertices, undirected edges or triples, columns of x, classes, sizes of splits: from the README of the data.
ONE_TYPE = {
    "cora": (2708, 5278, 1433, 7, (140, 500, 1000)),
    "citeseer": (3327, 4552, 3703, 6, (120, 500, 1000)),
    "coauthor-cs": (18333, 81894, 6805, 15, ()),
    "amazon-photo": (7650, 119081, 745, 8, ()),
    "facebook-pagepage": (22470, 170823, 4714, 4, ()),
    "twitch-de": (9498, 153138, 3170, 2, ()),
    "twitch-engb": (7126, 35324, 3170, 2, ()),
    "tolokers": (11758, 519000, 10, 2, (5879, 2939, 2940)),
    "minesweeper": (10000, 39402, 7, 2, (5000, 2500, 2500)),
    "actor": (7600, 26659, 932, 5, (3648, 2432, 1520)),
    "cora-ml": (2995, 8158, 2879, 7, ()),
    "com-dblp": (317080, 1049866, 0, 0, ()),
    "soc-slashdot0902": (82168, 504230, 0, 0, ()),
    "email-enron": (36692, 183831, 0, 0, ()),
}


def real(name):
    path = DATA / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    return path


@pytest.mark.parametrize("name", ONE_TYPE)
def test_real_graphs_of_one_type(name):
    vertices, edges, columns, classes, splits = ONE_TYPE[name]
    graph = from_npz(real(name))
    assert graph.name == name and graph.is_homogeneous
    assert graph.num_nodes == vertices and graph.num_edges == 2 * edges
    nodes = graph.nodes["node"]
    assert ("x" in nodes.fields) == bool(columns)
    if columns:
        assert nodes.x.shape == (vertices, columns) and nodes.x.dtype == np.float32
        assert len(np.unique(nodes.y[nodes.y >= 0])) == classes
    assert tuple(len(rows) for rows in nodes.splits.values()) == splits


def test_real_multilabels():
    graph = from_npz(real("deezer-hu"))
    assert graph.num_nodes == 47538 and graph.num_edges == 2 * 222887
    assert graph.y.shape == (47538, 84) and set(np.unique(graph.y)) == {0, 1}


@pytest.mark.parametrize(
    ("name", "vertices", "triples", "relations", "classes", "splits"),
    [
        ("aifb", 8285, 29043, 45, 4, (104, 36, 36)),
        ("am-1m", 1080876, 1360749, 12, 8, (13423, 20000, 20000, 20000)),
    ],
)
def test_real_typed_edges(name, vertices, triples, relations, classes, splits):
    graph = from_npz(real(name))
    assert graph.node_types == ["entity"] and graph.num_nodes == vertices and graph.num_edges == triples
    assert graph.edge_types == [("entity", f"r{k}", "entity") for k in range(relations)]
    assert tuple(len(rows) for rows in graph.nodes["entity"].splits.values()) == splits
    labels = graph.nodes["entity"].y
    assert len(np.unique(labels[labels >= 0])) == classes


def test_real_several_types():
    graph = from_npz(real("hetero-dblp"), split=2)
    assert graph.num_nodes == 26128 and graph.num_edges == 119783 and len(graph.edges) == 3
    assert graph.nodes["author"].x.shape == (4057, 334) and graph.nodes["term"].x.shape == (7723, 50)
    assert len(graph.split("train", "author")) == 240, "60 for each of 4 classes"
    assert len(from_npz(real("hetero-dblp")).split("train", "author")) == 80


def test_real_triples():
    graph = from_npz(real("fb15k-237"))
    assert graph.num_nodes == 14541 and graph.num_edges == 272115 and len(graph.edges) == 237
    held_out = {name: sum(len(edges.held_out[name]) for edges in graph.edges.values()) for name in ("val", "test")}
    assert graph.num_edges + sum(held_out.values()) == 310116


def test_real_users_and_items():
    graph = from_npz(real("gowalla"))
    assert graph.num_nodes == 70839
    rates, rated_by = graph.edges["user", "rates", "item"], graph.edges["item", "rated-by", "user"]
    assert rates.count == rated_by.count == 810128
    assert len(rates.held_out["test"]) == 217242 and rated_by.held_out == {}


def test_every_real_archive_loads():
    if not DATA.is_dir():
        pytest.skip(f"{DATA} is not here")
    known = {*ONE_TYPE, "deezer-hu", "aifb", "am-1m", "hetero-dblp", "fb15k-237", "gowalla"}
    assert {path.stem for path in DATA.glob("*.npz")} <= known, "an archive without a test"


def one_type(**changes):
    arrays = {
        "num_nodes": 3,
        "indptr": [0, 1, 2, 2],
        "indices": [1, 0],
        "features": np.ones((3, 2), np.float32),
    }
    return {key: np.asarray(value) for key, value in {**arrays, **changes}.items() if value is not None}


def typed_edges(**changes):
    return {"num_nodes": 2, "num_relations": 1, "edge_index": [[0, 1], [1, 0]], "edge_type": [0, 0], **changes}


def triples(**changes):
    rows = [[0, 0, 1]]
    return {"num_entities": 2, "num_relations": 1, "train": rows, "valid": rows, "test": rows, **changes}


def users_and_items(**changes):
    return {"num_users": 2, "num_items": 2, "train": [[0], [1]], "test": [[1], [0]], **changes}


def write(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_small_archive(tmp_path):
    masks = np.eye(3, dtype=bool)[:2]
    path = write(tmp_path / "tiny.npz", **one_type(train_mask=masks, labels=[1, 0, -1], class_names=["a", "b"]))
    graph = from_npz(path, split=1)
    assert graph.indptr.tolist() == [0, 1, 2, 2] and graph.indices.tolist() == [1, 0]
    assert graph.split("train").tolist() == [1]
    assert graph.nodes["node"].categories == {"y": ["a", "b"]}
    with refused("value-out-of-range 2 0 1"):
        from_npz(path, split=2)


@pytest.mark.parametrize("build", [typed_edges, triples, users_and_items])
def test_small_archives_of_other_kinds(tmp_path, build):
    assert from_npz(write(tmp_path / "tiny.npz", **build())).num_edges == 2 - (build is triples)


def test_original_ids(tmp_path):
    numbers = from_npz(write(tmp_path / "a.npz", **one_type(original_id=np.array([7, 5, 6], np.uint8)))).nodes["node"]
    assert numbers.ids.tolist() == [7, 5, 6] and numbers.ids.dtype == np.int64
    strings = from_npz(write(tmp_path / "b.npz", **one_type(original_id=["c", "a", "b"]))).nodes["node"]
    assert isinstance(strings.ids, StringIds) and strings.ids.tolist() == ["c", "a", "b"]


def test_held_out_pairs_have_one_of_each():
    with refused("shape-mismatch"):
        pair_array(np.array([0, 1]), np.array([0]), 2, 2, "test")


def test_sparse_features_become_dense(tmp_path):
    parts = {
        "feat_indptr": [0, 1, 1, 3],
        "feat_indices": [1, 0, 1],
        "feat_data": [1.0, 2.0, 3.0],
        "feat_shape": [3, 2],
    }
    path = write(tmp_path / "sparse.npz", **one_type(features=None, **parts))
    assert from_npz(path).x.tolist() == [[0, 1], [0, 0], [2, 3]]
    broken = write(tmp_path / "broken.npz", **one_type(features=None, **{**parts, "feat_indices": [1, 0, 9]}))
    with refused("shape-mismatch"):
        from_npz(broken)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (one_type(indptr=[0, 1, 2]), "shape-mismatch num_nodes"),
        (one_type(indptr=[0, 2, 1, 2]), "shape-mismatch num_nodes"),
        (one_type(indices=[1, 7]), "id-out-of-range 7 0 2"),
        (one_type(indices=None), "field-missing indices"),
        (one_type(features=np.ones((2, 2))), "shape-mismatch x 2 3"),
        ({"something": np.ones(3)}, "wrong-file"),
        ({"num_nodes": 3, "indptr": np.array([{}], dtype=object)}, "damaged-file"),
        (
            {"num_nodes": 2, "num_relations": 1, "edge_index": [[0], [1]], "edge_type": [3]},
            "id-out-of-range 0",
        ),
        (one_type(num_nodes=[3, 3]), "invalid-value num_nodes [3 3]"),
        (one_type(num_nodes="three"), "invalid-value num_nodes three"),
        (one_type(num_nodes=-1), "invalid-value num_nodes -1"),
        (one_type(indptr=[0.0, 1.0, 2.0, 2.0]), "wrong-type float64"),
        (one_type(indptr=[[0, 1, 2, 2]]), "wrong-type int64 1 4"),
        (one_type(indptr=np.empty(0, np.int64)), "shape-mismatch num_nodes"),
        (one_type(features=1.0), "wrong-type x float64"),
        (one_type(features=["a", "b", "c"]), "wrong-type x <U1"),
        (one_type(labels=["a", "b", "c"]), "wrong-type y <U1"),
        (one_type(train_mask=[True, False]), "shape-mismatch train_mask 2 [3]"),
        (one_type(train_mask=np.ones((3, 2), bool)), "shape-mismatch train_mask 3 2"),
        (one_type(train_mask=np.ones((1, 1, 3), bool)), "shape-mismatch train_mask 1 3"),
        (one_type(original_id=[4, 5, 4]), "duplicate original_id 4"),
        (one_type(original_id=["a", "b", "b"]), "duplicate original_id b"),
        (one_type(original_id=[0.5, 1.5, 2.5]), "wrong-type original_id float64"),
        (
            one_type(original_id=np.array([2**63, 1, 2], np.uint64)),
            "value-out-of-range original_id 9223372036854775808",
        ),
        (one_type(original_id=[1, 2]), "shape-mismatch 2 3"),
        (one_type(features=None, feat_indptr=0, feat_indices=0, feat_data=0, feat_shape=3), "shape-mismatch"),
        (typed_edges(edge_index=[0, 1]), "shape-mismatch edge_index 2 [2 edges]"),
        (typed_edges(edge_type=[0]), "shape-mismatch"),
        (typed_edges(edge_type=[0, 0, 0]), "shape-mismatch"),
        (typed_edges(edge_type=[0.0, 0.0]), "wrong-type float64"),
        (triples(train=[[0, 1]]), "shape-mismatch 1 2 [triples 3]"),
        (triples(test=[0, 0, 1]), "shape-mismatch 3 [triples 3]"),
        (users_and_items(train=[[0], [1], [0]]), "shape-mismatch 3 1 [2 edges]"),
        (users_and_items(test=[0, 1]), "shape-mismatch 2 [2 edges]"),
    ],
)
def test_bad_archives_are_sentences(tmp_path, arrays, sentence):
    path = write(tmp_path / "bad.npz", **arrays)
    with refused(sentence):
        from_npz(path)


def test_what_is_no_archive_is_a_sentence(tmp_path):
    with refused("file-not-found"):
        from_npz(tmp_path / "absent.npz")
    np.save(tmp_path / "array.npy", np.ones(3))
    with refused("wrong-file"):
        from_npz((tmp_path / "array.npy").rename(tmp_path / "array.npz"))
    whole = write(tmp_path / "whole.npz", **one_type()).read_bytes()
    (tmp_path / "half.npz").write_bytes(whole[: len(whole) // 2])
    with refused("wrong-file half.npz"):
        from_npz(tmp_path / "half.npz")
    damaged = bytearray(whole)
    damaged[200:210] = b"0123456789"
    (tmp_path / "damaged.npz").write_bytes(damaged)
    with refused("damaged-file"):
        from_npz(tmp_path / "damaged.npz")


def benchmark(separators=("adj_", "attr_"), **changes):
    """Four vertices in the layout of the GNN benchmark: 0-1 stored one way, 1-2 both ways, a loop at 3."""
    adjacency, attributes = separators
    arrays = {
        f"{adjacency}data": np.ones(4, np.float32),
        f"{adjacency}indices": np.array([1, 2, 1, 3], np.int32),
        f"{adjacency}indptr": np.array([0, 1, 2, 3, 4], np.int32),
        f"{adjacency}shape": np.array([4, 4]),
        f"{attributes}data": np.array([2.0, 3.0], np.float32),
        f"{attributes}indices": np.array([1, 0], np.int32),
        f"{attributes}indptr": np.array([0, 1, 1, 2, 2], np.int32),
        f"{attributes}shape": np.array([4, 2]),
        "labels": np.array([0, 1, 1, 0]),
    }
    arrays.update(changes)
    return {key: value for key, value in arrays.items() if value is not None}


@pytest.mark.parametrize("separators", [("adj_", "attr_"), ("adj_matrix.", "attr_matrix.")])
def test_benchmark_layout(tmp_path, separators):
    """Edges go both ways once each, as in PyG and DGL; attributes and labels are the vertices'."""
    graph = from_npz(write(tmp_path / "photo.npz", **benchmark(separators)))
    lists = graph.edges["node", "to", "node"]
    assert [sorted(lists.indices[a:b].tolist()) for a, b in pairwise(lists.indptr)] == [[1], [0, 2], [1], [3]]
    assert not lists.fields
    assert graph.nodes["node"].fields["x"].tolist() == [[0, 2], [0, 0], [3, 0], [0, 0]]
    assert graph.nodes["node"].fields["y"].tolist() == [0, 1, 1, 0]


def test_benchmark_layout_with_dense_attributes_weights_and_names(tmp_path):
    """Values that are not all one are weights, of two directions the larger; names that are strings are kept."""
    arrays = benchmark(
        adj_data=np.array([0.5, 1.0, 4.0, 2.0], np.float32),
        attr_data=None,
        attr_indptr=None,
        attr_indices=None,
        attr_shape=None,
        attr_matrix=np.eye(4, dtype=np.float32),
        node_names=np.array(["a", "b", "c", "d"]),
        class_names=np.array(["red", "blue"]),
    )
    graph = from_npz(write(tmp_path / "photo.npz", **arrays))
    lists, nodes = graph.edges["node", "to", "node"], graph.nodes["node"]
    assert dict(zip(lists.indices[1:3].tolist(), lists.fields["weight"][1:3].tolist(), strict=True)) == {0: 0.5, 2: 4.0}
    assert nodes.fields["x"].tolist() == np.eye(4).tolist()
    assert nodes.ids.tolist() == ["a", "b", "c", "d"]
    assert nodes.categories["y"] == ["red", "blue"]


def test_benchmark_layout_with_sparse_labels(tmp_path):
    """A matrix of labels is multi-label."""
    sparse = {
        "labels": None,
        "labels_data": np.ones(2),
        "labels_indices": np.array([2, 0]),
        "labels_indptr": np.array([0, 1, 1, 2, 2]),
        "labels_shape": np.array([4, 3]),
    }
    graph = from_npz(write(tmp_path / "photo.npz", **benchmark(**sparse)))
    assert graph.nodes["node"].fields["y"].tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0], [0, 0, 0]]


def test_objects_in_an_archive_are_never_unpickled(tmp_path):
    """Names kept as Python objects, as the published archives have them, are left alone; others are refused."""
    trap = tmp_path / "sprung"

    class Trap:
        def __reduce__(self):
            return Path.touch, (trap,)

    names = np.array([Trap(), Trap(), Trap(), Trap()], dtype=object)
    path = tmp_path / "photo.npz"
    np.savez(path, **benchmark(node_names=names, class_names=names, metadata=names))
    graph = from_npz(path)
    assert graph.nodes["node"].ids is None
    assert graph.nodes["node"].categories == {}
    np.savez(path, **benchmark(labels=names))
    with refused("damaged-file"):
        from_npz(path)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"adj_shape": np.array([4, 5])}, "shape-mismatch"),
        ({"adj_shape": np.array([4])}, "shape-mismatch"),
        ({"adj_indices": np.array([1, 2, 1, 4])}, "shape-mismatch adj_indices 0 3"),
        ({"adj_indices": np.array([1, 2, 1, -1])}, "shape-mismatch adj_indices 0 3"),
        ({"adj_indptr": np.array([0, 2, 1, 3, 4])}, "shape-mismatch adj_indptr 4"),
        ({"adj_indptr": np.array([0, 1, 2, 4])}, "shape-mismatch adj_indptr 4"),
        ({"adj_data": np.ones(3)}, "shape-mismatch adj_data float64"),
        ({"adj_data": None}, "field-missing adj_data"),
        ({"attr_shape": np.array([4, 1])}, "shape-mismatch"),
        ({"labels": np.array([0, 1])}, "shape-mismatch y"),
    ],
)
def test_bad_benchmark_archives_are_sentences(tmp_path, changes, sentence):
    path = write(tmp_path / "bad.npz", **benchmark(**changes))
    with refused(sentence):
        from_npz(path).save(tmp_path / "graph")
