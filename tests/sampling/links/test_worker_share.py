"""Workers' shares of a batch of edges: together they are the batch, with the negatives that it has."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from link_graphs import RATES, complete_graph, shop_graph

from penstock.sampling import BatchKey
from penstock.sampling.links import EdgeBatcher, negatives_named, share_of

KEY = BatchKey(2, 1, 3)
POLICIES = [
    None,
    ("uniform", {"k": 3, "corrupt": "both", "filtered": True}),
    ("joint", {"k": 5, "filtered": True}),
    ("joint", {"k": 4, "group": 3, "corrupt": "both"}),
    ("in-batch", {"corrupt": "source", "filtered": True}),
]


def scored(batch):
    """Of every positive: its ends, and the (source, destination) pairs that count, the positive first."""
    sources, destinations, counts = batch.ranking()
    first, last = batch.nodes[batch.edge_type[0]], batch.nodes[batch.edge_type[2]]
    return [
        (int(edge), [(int(first[s]), int(last[d])) for s, d, c in zip(*rows, strict=True) if c])
        for edge, rows in zip(batch.edges, zip(sources, destinations, counts, strict=True), strict=True)
    ]


@pytest.mark.covering(1)
@pytest.mark.parametrize("graph, kind", [(shop_graph(), RATES), (complete_graph(9), ("node", "to", "node"))])
@pytest.mark.parametrize("policy", POLICIES)
@given(st.data())
def test_shares_are_the_batch(graph, kind, policy, data):
    negatives = None if policy is None else negatives_named(policy[0], **policy[1])
    count = graph.edges[kind].count
    positions = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=12, unique=True)))
    whole = EdgeBatcher(graph, kind, negatives).batch(positions, KEY)
    owner = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(positions), max_size=len(positions))))
    shares = [share_of(whole, np.flatnonzero(owner == rank)) for rank in range(3)]
    assert sorted(each for share in shares for each in scored(share)) == sorted(scored(whole))
    assert sum(share.num_pairs for share in shares) == whole.num_pairs
    for share in shares:
        assert share.whole == (len(positions), whole.num_pairs)
        assert len(share.pairs()[0]) == share.num_pairs
        assert share.exclude is whole.exclude
        for name, vertices in share.nodes.items():
            assert set(vertices) <= set(whole.nodes[name])
        if not len(share):
            assert sum(map(len, share.nodes.values())) == 0
