"""PyG in and out: what goes round comes back the same, edges in list order."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import EdgeSet, Graph, NodeSet, StringIds
from penstock.graph.convert import from_pyg
from penstock.graph.folder import to_pyg
from refusals import refused

torch = pytest.importorskip("torch")
pyg = pytest.importorskip("torch_geometric.data", reason="PyG is an extra")

HOMOGENEOUS = ("node", "to", "node")


@st.composite
def homogeneous_data(draw):
    count = draw(st.integers(1, 12))
    size = draw(st.integers(0, 30))
    ends = st.lists(st.integers(0, count - 1), min_size=size, max_size=size)
    data = pyg.Data(edge_index=torch.tensor([draw(ends), draw(ends)], dtype=torch.long).reshape(2, size))
    data.x = torch.arange(count * 3, dtype=draw(st.sampled_from([torch.float32, torch.float16, torch.float64])))
    data.x = data.x.reshape(count, 3)
    data.edge_attr = torch.arange(size * 2, dtype=torch.float32).reshape(size, 2)
    data.edge_weight = torch.arange(size, dtype=torch.int16)
    if draw(st.booleans()):
        data.y = torch.arange(count) % 3
    for split in ("train", "val", "test"):
        if draw(st.booleans()):
            data[f"{split}_mask"] = torch.tensor(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    return data


@given(homogeneous_data())
def test_data_comes_back_with_its_edges_sorted(data):
    graph = from_pyg(data)
    back = to_pyg(graph)
    order = np.lexsort((data.edge_index[0], data.edge_index[1]))
    expected = {"edge_index": data.edge_index[:, order]}
    expected |= {key: data[key][order] for key in ("edge_attr", "edge_weight")}
    expected |= {key: data[key] for key in data.keys() if key not in expected}  # noqa: SIM118
    assert set(back.keys()) == set(expected)
    for key, value in expected.items():
        assert back[key].dtype == value.dtype and torch.equal(back[key], value), key


@given(homogeneous_data())
def test_a_graph_comes_back_as_it_was(data):
    graph = from_pyg(data)
    again = from_pyg(to_pyg(graph))
    assert_same(graph, again)


def test_lists_are_in_neighbours():
    graph = from_pyg(pyg.Data(edge_index=torch.tensor([[0, 2, 1], [1, 1, 0]]), num_nodes=4))
    assert graph.indptr.tolist() == [0, 1, 3, 3, 3]
    assert graph.indices.tolist() == [1, 0, 2]
    assert graph.node_types == ["node"] and graph.edge_types == [HOMOGENEOUS]


def test_hetero_data_goes_round():
    data = pyg.HeteroData()
    data["paper"].x = torch.rand(4, 2)
    data["paper"].y = torch.tensor([0, 1, 0, 1])
    data["paper"].train_mask = torch.tensor([True, False, True, False])
    data["author"].num_nodes = 3
    data["author", "writes", "paper"].edge_index = torch.tensor([[2, 0, 1, 1], [3, 0, 0, 2]])
    data["author", "writes", "paper"].time = torch.tensor([10, 20, 30, 40])
    data["paper", "cites", "paper"].edge_index = torch.empty(2, 0, dtype=torch.long)
    graph = from_pyg(data)
    assert graph.node_types == ["paper", "author"]
    assert graph.nodes["author"].count == 3 and graph.nodes["author"].fields == {}
    edges = graph.edges["author", "writes", "paper"]
    assert edges.indptr.tolist() == [0, 2, 2, 3, 4] and edges.indices.tolist() == [0, 1, 1, 2]
    assert edges.fields["time"].tolist() == [20, 30, 40, 10]
    back = to_pyg(graph)
    assert torch.equal(back["paper"].x, data["paper"].x)
    assert torch.equal(back["paper"].train_mask, data["paper"].train_mask) and "val_mask" not in back["paper"]
    assert back["author", "writes", "paper"].edge_index.tolist() == [[0, 1, 1, 2], [0, 0, 2, 3]]
    assert back["paper", "cites", "paper"].edge_index.shape == (2, 0)
    assert_same(graph, from_pyg(back))


def test_ids_and_held_out_edges_go_round():
    lists = np.array([0, 1, 1, 2]), np.array([1, 0], np.int32)
    held_out = {"val": np.array([[0, 2]]), "test_negative": np.array([[1, 1], [2, 0]])}
    numbered = Graph({"node": NodeSet(3, ids=np.array([7, 3, 9]))}, {HOMOGENEOUS: EdgeSet(*lists, {}, held_out)})
    named = Graph({"node": NodeSet(3, ids=StringIds.of(["a", "ü", ""]))}, {HOMOGENEOUS: EdgeSet(*lists)})
    assert to_pyg(numbered).held_out_val_index.tolist() == [[0], [2]]
    assert to_pyg(named).n_id == ["a", "ü", ""]
    assert_same(numbered, from_pyg(to_pyg(numbered)))
    assert_same(named, from_pyg(to_pyg(named)))


def test_edge_fields_that_look_like_vertex_fields_are_renamed():
    lists = np.array([0, 1, 2, 3]), np.array([1, 2, 0], np.int32)
    nodes = NodeSet(3, {"x": np.ones((3, 1), np.float32), "time": np.arange(3)})
    graph = Graph({"node": nodes}, {HOMOGENEOUS: EdgeSet(*lists, {"time": np.arange(3) * 10, "weight": np.ones(3)})})
    again = from_pyg(to_pyg(graph))
    assert again.nodes["node"].fields["time"].tolist() == [0, 1, 2]
    assert again.edges[HOMOGENEOUS].fields["edge_time"].tolist() == [0, 10, 20]
    assert again.edges[HOMOGENEOUS].fields["edge_weight"].tolist() == [1, 1, 1]


def test_renamed_edge_fields_never_collide():
    lists = np.array([0, 1, 2, 2]), np.array([1, 2], np.int32)
    names = ("x", "edge_x", "num_nodes", "label")
    edges = EdgeSet(*lists, {name: np.full(2, place) for place, name in enumerate(names)})
    nodes = NodeSet(3, {"x": np.ones((3, 1), np.float32), "label": np.arange(3)})
    again = from_pyg(to_pyg(Graph({"node": nodes}, {HOMOGENEOUS: edges})))
    assert {key: values[0] for key, values in again.edges[HOMOGENEOUS].fields.items()} == {
        "edge_edge_x": 0,
        "edge_x": 1,
        "edge_num_nodes": 2,
        "edge_edge_label": 3,
    }


def test_names_that_pyg_needs_are_sentences():
    with refused("duplicate num_nodes"):
        to_pyg(Graph({"node": NodeSet(2, {"num_nodes": np.arange(2)})}, {}))


def test_a_mapped_graph_is_shared_and_may_be_written(tmp_path):
    nodes = NodeSet(3, {"x": np.ones((3, 2), np.float32)})
    lists = np.array([0, 1, 2, 3]), np.array([1, 2, 0], np.int32)
    graph = Graph({"node": nodes}, {HOMOGENEOUS: EdgeSet(*lists)}).save(tmp_path / "graph")
    data = graph.to_pyg()
    data.x += 1
    assert data.x.tolist() == [[2, 2]] * 3
    assert graph.x.tolist() == [[1, 1]] * 3
    in_memory = Graph({"node": NodeSet(3, {"x": np.ones((3, 2))})}, {HOMOGENEOUS: EdgeSet(*lists)})
    shared = to_pyg(in_memory)
    shared.x += 1
    assert in_memory.x.tolist() == [[2, 2]] * 3


def test_what_is_neither_vertex_nor_edge_is_named():
    edge_index = torch.tensor([[0, 1], [1, 2]])
    data = pyg.Data(edge_index=edge_index, x=torch.ones(5, 1), name="mine", edge_label_index=edge_index, total=3.5)
    data.edge_label = torch.ones(2)
    data.whole = torch.ones(1, 7)
    graph = from_pyg(data)
    assert sorted(graph.origin["dropped"]) == ["edge_label", "edge_label_index", "name", "total", "whole"]
    assert graph.edges[HOMOGENEOUS].fields == {} and list(graph.nodes["node"].fields) == ["x"]


@pytest.mark.parametrize(
    ("attributes", "count"),
    [
        ({"num_nodes": 9}, 9),
        ({"x": torch.ones(6, 1)}, 6),
        ({"y": torch.zeros(5)}, 5),
        ({"y": torch.zeros(1)}, 4),
        ({"train_mask": torch.ones(7, dtype=torch.bool), "y": torch.zeros(1)}, 7),
        ({}, 4),
    ],
)
def test_number_of_vertices(attributes, count):
    graph = from_pyg(pyg.Data(edge_index=torch.tensor([[0, 1], [3, 2]]), **attributes))
    assert graph.num_nodes == count


def test_one_of_several_masks_is_chosen():
    masks = torch.tensor([[True, False], [False, True], [True, True]])
    data = pyg.Data(edge_index=torch.empty(2, 0, dtype=torch.long), train_mask=masks, num_nodes=3)
    assert from_pyg(data).split("train").tolist() == [0, 2]
    assert from_pyg(data, split=1).split("train").tolist() == [1, 2]
    with refused("value-out-of-range train_mask 2 0 1"):
        from_pyg(data, split=2)


def test_edge_index_subclass_is_understood():
    edge_index = pyg.Data(edge_index=pyg_edge_index([[1, 0], [0, 1]]), num_nodes=2)
    assert from_pyg(edge_index).indices.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (pyg.Data(x=torch.ones(3, 1)), "field-missing edge_index [2 edges]"),
        (pyg.Data(adj_t=torch.eye(3).to_sparse()), "wrong-type adj_t edge_index"),
        (
            pyg.Data(edge_index=torch.zeros(4, 3, dtype=torch.long)),
            "shape-mismatch 4 3 [2 edges]",
        ),
        (
            pyg.Data(edge_index=torch.zeros(2, 3), num_nodes=1),
            "wrong-type float32",
        ),
        (
            pyg.Data(edge_index=torch.tensor([[0], [5]]), x=torch.ones(3, 1)),
            "id-out-of-range 5 0 2",
        ),
        (
            pyg.Data(edge_index=torch.tensor([[-1], [0]]), num_nodes=3),
            "id-out-of-range -1 0 2",
        ),
        (
            pyg.Data(edge_index=torch.tensor([[0], [1]]), x=torch.ones(3, 1), num_nodes=4),
            "shape-mismatch data.x 3",
        ),
        (
            pyg.Data(edge_index=torch.tensor([[0], [1]]), x=torch.ones(2, 1, dtype=torch.bfloat16)),
            "wrong-type data.x torch.bfloat16",
        ),
        (
            pyg.Data(edge_index=torch.tensor([[0], [1]]), x=torch.eye(2).to_sparse()),
            "wrong-type data.x",
        ),
        (
            pyg.Data(edge_index=torch.tensor([[0], [1]]), num_nodes=torch.arange(2)),
            "invalid-value num_nodes",
        ),
        (
            pyg.Data(edge_index=torch.tensor([[0], [1]]), num_nodes=3, n_id=torch.tensor([4, 5, 4])),
            "duplicate data.n_id 4",
        ),
        (
            pyg.Data(edge_index=torch.tensor([[0], [1]]), num_nodes=3, n_id=["a", "b", "b"]),
            "duplicate data.n_id b",
        ),
    ],
)
def test_bad_data_is_a_sentence(data, sentence):
    with refused(sentence):
        from_pyg(data)


def test_bad_hetero_data_is_a_sentence():
    data = pyg.HeteroData()
    data["a", "to", "b"].edge_index = torch.tensor([[0], [0]])
    with refused("missing-data a data['a'].num_nodes"):
        from_pyg(data)
    data["a"].meta = "words"
    with refused("missing-data a"):
        from_pyg(data)


def test_what_is_no_graph_is_a_sentence():
    with refused("wrong-type"):
        from_pyg({})
    part = Graph(
        {"node": NodeSet(2, first=2, total=6)},
        {HOMOGENEOUS: EdgeSet(np.array([0, 0, 1]), np.array([5], np.int32))},
    )
    with refused("whole-graph-needed"):
        to_pyg(part)


def test_without_pyg_there_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with refused("not-installed penstock[pyg]"):
        to_pyg(Graph({"node": NodeSet(1)}, {}))


def pyg_edge_index(values):
    from torch_geometric import EdgeIndex

    return EdgeIndex(torch.tensor(values))


def assert_same(graph, again):
    assert again.node_types == graph.node_types and again.edge_types == graph.edge_types
    for name, nodes in graph.nodes.items():
        other = again.nodes[name]
        assert other.count == nodes.count
        assert_arrays(nodes.fields, other.fields)
        assert_arrays(nodes.splits, other.splits)
        ids, others = nodes.ids, other.ids
        assert (ids is None and others is None) or ids.tolist() == others.tolist()
    for edge_type, edges in graph.edges.items():
        other = again.edges[edge_type]
        assert edges.indptr.tolist() == other.indptr.tolist() and edges.indices.tolist() == other.indices.tolist()
        assert_arrays(edges.fields, other.fields)
        assert_arrays(edges.held_out, other.held_out)


def assert_arrays(arrays, others):
    assert set(arrays) == set(others)
    for key, values in arrays.items():
        assert values.dtype == others[key].dtype, key
        np.testing.assert_array_equal(values, others[key], err_msg=key)
