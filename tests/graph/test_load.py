"""`load` recognises what it is given."""

import gzip
import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse

from penstock import EdgeSet, Graph, NodeSet
from penstock.graph.convert import load
from refusals import refused

EDGES = ("node", "to", "node")


@pytest.fixture
def graph():
    lists = np.array([0, 1, 2, 2]), np.array([1, 0], np.int32)
    return Graph({"node": NodeSet(3, {"x": np.ones((3, 2), np.float32)})}, {EDGES: EdgeSet(*lists)}, "mine")


def test_a_graph_is_returned_as_it_is(graph):
    assert load(graph) is graph


def test_graph_folder(graph, tmp_path):
    graph.save(tmp_path / "folder")
    for given in (tmp_path / "folder", str(tmp_path / "folder")):
        assert load(given).name == "mine" and load(given).path == tmp_path / "folder"


def test_archive_with_options(tmp_path):
    masks = np.array([[True, False], [False, True]])
    np.savez(tmp_path / "a.npz", num_nodes=2, indptr=[0, 1, 2], indices=[1, 0], train_mask=masks)
    assert load(tmp_path / "a.npz").split("train").tolist() == [0]
    assert load(tmp_path / "a.npz", split=1).split("train").tolist() == [1]


def test_ogb_folder(tmp_path):
    files = {
        "raw/num-node-list": "2\n",
        "raw/num-edge-list": "1\n",
        "raw/edge": "0,1\n",
        **{f"split/time/{name}": "0\n" for name in ("train", "valid", "test")},
    }
    for name, text in files.items():
        path = tmp_path / "ogbn_set" / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt") as file:
            file.write(text)
    assert load(tmp_path / "ogbn_set").indices.tolist() == [0]
    assert load(tmp_path / "ogbn_set", inverse=True).indices.tolist() == [1, 0]


def test_objects_of_other_libraries():
    assert load(sparse.csr_array(np.eye(3)), y=np.arange(3)).y.tolist() == [0, 1, 2]
    assert load(sparse.coo_matrix(np.eye(2))).num_edges == 2
    networkx = pytest.importorskip("networkx")
    assert load(networkx.path_graph(3)).num_edges == 4
    assert load(networkx.MultiDiGraph([(0, 1), (0, 1)])).num_edges == 2


def test_pyg_objects():
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch_geometric.data")
    edge_index = torch.tensor([[0, 1], [1, 2]])
    assert load(data.Data(edge_index=edge_index, num_nodes=3)).indices.tolist() == [0, 1]
    typed = data.HeteroData()
    typed["a"].num_nodes = 3
    typed["a", "to", "a"].edge_index = edge_index
    assert load(typed).edge_types == [("a", "to", "a")]
    batch = data.Batch.from_data_list([data.Data(edge_index=edge_index, num_nodes=3)] * 2)
    assert load(batch).num_nodes == 6


def test_dataset_names(monkeypatch, graph):
    from penstock.graph import generate

    asked = []
    monkeypatch.setattr(generate, "make_cached", lambda name: asked.append(name) or graph)
    name = next(iter(generate.DATASETS))
    assert load(name) is graph and asked == [name]
    with refused(f"graph-not-found '{name}'"):
        load(name[:-1])
    with refused(f"graph-not-found qqqqqq {name}"):
        load("qqqqqq")


def test_other_libraries_are_not_imported():
    code = (
        "import sys; from penstock.graph.convert import load;"
        " print([name for name in ('torch', 'torch_geometric', 'dgl', 'networkx') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_bad_sources_are_sentences(tmp_path, graph):
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "partition.json").write_text("{}")
    with refused("wrong-file open_partition"):
        load(tmp_path / "cut")
    (tmp_path / "spec.yaml").write_text("nodes: {}")
    with refused("wrong-file"):
        load(tmp_path / "spec.yaml")
    (tmp_path / "notes.txt").write_text("hello")
    with refused("wrong-file notes.txt"):
        load(tmp_path / "notes.txt")
    with refused("graph-not-found"):
        load(tmp_path)
    for thing, name in ((3, "int"), (np.eye(2), "numpy.ndarray"), (None, "None")):
        with refused(f"wrong-type {name}"):
            load(thing)


def test_unknown_options_are_sentences(graph, tmp_path):
    with refused("unknown-name split"):
        load(graph, split=1)
    with refused("unknown-name spilt"):
        (tmp_path / "a.npz").touch()
        load(tmp_path / "a.npz", spilt=1)
