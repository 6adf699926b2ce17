"""NetworkX graphs of all four kinds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import StringIds
from penstock.graph.convert import from_networkx
from refusals import refused

nx = pytest.importorskip("networkx", reason="NetworkX is an extra")

EDGES = ("node", "to", "node")


@given(
    kind=st.sampled_from(["Graph", "DiGraph", "MultiGraph", "MultiDiGraph"]),
    pairs=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=20),
)
def test_edges_of_every_kind(kind, pairs):
    original = getattr(nx, kind)()
    original.add_nodes_from(range(7))
    for place, (a, b) in enumerate(pairs):
        original.add_edge(a, b, weight=place)
    graph = from_networkx(original)
    found = sorted(
        (int(s), int(d), int(w))
        for (s, d), w in zip(
            graph.edges[EDGES].edge_index().T, graph.edges[EDGES].fields.get("weight", []), strict=True
        )
    )
    expected = [(a, b, values["weight"]) for a, b, values in original.edges(data=True)]
    if not original.is_directed():
        expected += [(b, a, weight) for a, b, weight in expected if a != b]
    assert found == sorted(expected)
    assert graph.num_nodes == 7 and graph.nodes["node"].ids is None


def test_ids():
    assert from_networkx(nx.path_graph(3)).nodes["node"].ids is None
    shifted = from_networkx(nx.path_graph([5, 3, 4]))
    assert shifted.nodes["node"].ids.tolist() == [5, 3, 4] and shifted.nodes["node"].ids.dtype == np.int64
    typed = from_networkx(nx.path_graph([np.int64(5), np.uint8(3), 4])).nodes["node"].ids
    assert typed.tolist() == [5, 3, 4] and typed.dtype == np.int64
    assert from_networkx(nx.path_graph(list(np.arange(3)))).nodes["node"].ids is None
    for names in (["a", "b"], [1.5, "x"], [True, False], [2**70, 1]):
        ids = from_networkx(nx.path_graph(names)).nodes["node"].ids
        assert isinstance(ids, StringIds) and ids.tolist() == [str(name) for name in names]
    with refused("duplicate 1"):
        from_networkx(nx.path_graph([1, "1"]))
    with refused("invalid-value"):
        from_networkx(nx.path_graph(["a", "b\ud800"]))


def test_attributes_become_fields():
    original = nx.DiGraph([(0, 1, {"weight": 0.5, "kind": "road"}), (1, 2, {"weight": 2})], name="town")
    for node in original:
        original.nodes[node].update(
            x=[float(node), 1.0], y=node, train_mask=node == 1, label=f"n{node}", big=2**63, ragged=[0] * node
        )
    original.nodes[0]["only_here"] = 3
    graph = from_networkx(original)
    assert graph.name == "town"
    assert graph.x.tolist() == [[0, 1], [1, 1], [2, 1]] and graph.x.dtype == np.float32
    assert graph.y.tolist() == [0, 1, 2] and graph.y.dtype == np.int64
    assert graph.split("train").tolist() == [1]
    assert graph.edges[EDGES].fields["weight"].tolist() == [0.5, 2]
    assert set(graph.nodes["node"].fields) == {"x", "y"}
    assert graph.origin["dropped"] == ["node label", "node big", "node ragged", "node only_here", "edge kind"]


def test_an_empty_graph():
    graph = from_networkx(nx.Graph())
    assert graph.num_nodes == 0 and graph.num_edges == 0
