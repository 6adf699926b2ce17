"""DGL graphs, through an object that answers as DGLGraph does, and through DGL where it is installed."""

from types import SimpleNamespace

import pytest

from penstock.graph.convert import from_dgl, load
from refusals import refused

torch = pytest.importorskip("torch")


class LikeDgl:
    """The part of DGLGraph's interface that the converter uses."""

    is_block = False

    def __init__(self, counts, edges, node_data=None, edge_data=None):
        self.ntypes, self._counts = list(counts), counts
        self.canonical_etypes, self._edges = list(edges), edges
        self.nodes = {name: SimpleNamespace(data=(node_data or {}).get(name, {})) for name in counts}
        self.edges = _EdgeView(self, edge_data or {})

    def num_nodes(self, name):
        return self._counts[name]


class _EdgeView:
    """`graph.edges` is called for the ends and indexed for the data."""

    def __init__(self, graph, data):
        self._graph, self._data = graph, data

    def __call__(self, form, order, etype):
        assert (form, order) == ("uv", "eid")
        sources, destinations = self._graph._edges[etype]
        return torch.tensor(sources), torch.tensor(destinations)

    def __getitem__(self, etype):
        return SimpleNamespace(data=self._data.get(etype, {}))


def homogeneous():
    return LikeDgl(
        {"_N": 4},
        {("_N", "_E", "_N"): ([0, 1, 2, 2, 2], [1, 2, 0, 1, 1])},
        {
            "_N": {
                "feat": torch.arange(8.0).reshape(4, 2),
                "label": torch.tensor([0, 1, 1, 0]),
                "train_mask": torch.tensor([1, 0, 0, 1], dtype=torch.uint8),
                "_ID": torch.tensor([9, 8, 7, 6]),
            }
        },
        {("_N", "_E", "_N"): {"feat": torch.arange(5.0).reshape(5, 1), "weight": torch.arange(5)}},
    )


def test_one_type():
    graph = from_dgl(homogeneous())
    assert graph.edge_types == [("node", "to", "node")]
    assert graph.indptr.tolist() == [0, 1, 4, 5, 5] and graph.indices.tolist() == [2, 0, 2, 2, 1]
    assert graph.x.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]] and graph.y.tolist() == [0, 1, 1, 0]
    assert graph.split("train").tolist() == [0, 3]
    assert graph.nodes["node"].ids.tolist() == [9, 8, 7, 6]
    edges = graph.edges["node", "to", "node"]
    assert edges.fields["weight"].tolist() == [2, 0, 3, 4, 1]
    assert edges.fields["edge_attr"].tolist() == [[2], [0], [3], [4], [1]]


def test_several_types_keep_their_names():
    graph = from_dgl(
        LikeDgl(
            {"user": 3, "game": 2},
            {("user", "plays", "game"): ([0, 2], [1, 0]), ("user", "follows", "user"): ([1], [0])},
            {"game": {"x": torch.ones(2, 1), "feat": torch.zeros(2, 1)}},
        )
    )
    assert graph.edges["user", "plays", "game"].indices.tolist() == [2, 0]
    assert graph.nodes["game"].x.tolist() == [[1], [1]], "a field that is called x already stays x"
    assert graph.nodes["game"].fields["feat"].tolist() == [[0], [0]]


def test_what_is_no_graph_is_a_sentence():
    block = homogeneous()
    block.is_block = True
    with refused("wrong-type"):
        from_dgl(block)
    with refused("wrong-type"):
        from_dgl({})


def test_real_dgl():
    dgl = pytest.importorskip("dgl", reason="DGL is an extra", exc_type=Exception)
    original = dgl.graph(([0, 1], [1, 2]), num_nodes=3)
    original.ndata["feat"] = torch.ones(3, 2)
    graph = load(original)
    assert graph.indices.tolist() == [0, 1] and graph.x.shape == (3, 2)
