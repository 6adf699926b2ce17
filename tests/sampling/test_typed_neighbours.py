"""Sampling of heterogeneous graphs: every relation by its own fan-out."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neighbourhoods import assert_edges_are_in_the_lists, assert_unbiased, estimates, same_batch, stars
from penstock import EdgeSet, Graph, NodeSet
from penstock.graph.csr import build_lists
from penstock.graph.schema import edge_key
from penstock.sampling import ALL, BatchKey, MiniBatch, NeighbourSampler, TypedNeighbourSampler
from random_graphs import directed_graph, graphs, power_law_graph
from refusals import refused

KEY = BatchKey(4, 0, 0)
BOUGHT, KNOWS, SIMILAR = ("user", "bought", "item"), ("user", "knows", "user"), ("item", "similar", "item")


def shop(users=300, items=200, seed=0):
    rng = np.random.default_rng(seed)

    def lists(sources, targets, edges):
        indptr, indices, _ = build_lists(
            rng.integers(0, sources, edges), rng.integers(0, targets, edges), sources, targets
        )
        return EdgeSet(indptr, indices, {"w": rng.random(edges).astype(np.float32)})

    edges = {BOUGHT: lists(users, items, 4000), KNOWS: lists(users, users, 5000), SIMILAR: lists(items, items, 3000)}
    return Graph({"user": NodeSet(users), "item": NodeSet(items)}, edges, "shop")


@given(graphs(), st.data())
def test_typed_batches_keep_the_contract(graph, data):
    fanouts = data.draw(st.lists(st.sampled_from([1, 2, 5, ALL]), min_size=1, max_size=3))
    replace, weight = data.draw(st.booleans()), data.draw(st.sampled_from([None, "weight"]))
    seeds = {name: np.arange(nodes.count)[::3] for name, nodes in graph.nodes.items()}
    pairs = {kind: edges.edge_index()[:, ::4] for kind, edges in graph.edges.items()}
    exclude = data.draw(st.sampled_from([None, pairs]))
    samplers = [
        TypedNeighbourSampler(graph, fanouts, replace, weight, totals=True, edges=True, relabel=way)
        for way in ("direct", "hash")
    ]
    batch, hashed = (sampler.sample(seeds, KEY, exclude=exclude) for sampler in samplers)
    same_batch(batch, hashed)
    check_contract(graph, batch, seeds)
    for block, fanout in zip(reversed(batch.blocks), fanouts, strict=True):
        for kind, edges in graph.edges.items():
            check_relation(edges, block, kind, fanout, replace, batch.vertices, weight, exclude)


def check_contract(graph, batch, seeds):
    assert list(batch.vertices) == graph.node_types
    for name, vertices in batch.vertices.items():
        np.testing.assert_array_equal(vertices[: len(seeds[name])], seeds[name])
        assert len(np.unique(vertices)) == len(vertices)
    assert batch.blocks[-1].dst_counts == {name: len(these) for name, these in seeds.items()}
    assert batch.blocks[0].src_counts == {name: len(these) for name, these in batch.vertices.items()}
    for outer, inner in zip(batch.blocks[:-1], batch.blocks[1:], strict=True):
        assert outer.dst_counts == inner.src_counts


def check_relation(edges, block, kind, fanout, replace, vertices, weight, exclude):
    source, _, destination = kind
    shares = edges.fields["weight"] > 0 if weight else np.ones(edges.count, bool)
    if exclude is not None:
        gone = set(map(tuple, exclude[kind].T.tolist()))
        shares = shares & np.array([pair not in gone for pair in map(tuple, edges.edge_index().T.tolist())], bool)
    readers = vertices[destination][: block.dst_counts[destination]]
    counts = np.array([shares[edges.indptr[v] : edges.indptr[v + 1]].sum() for v in readers], int)
    expected = counts if fanout == ALL else fanout * (counts > 0) if replace else np.minimum(counts, fanout)
    if expected.sum() == 0:
        assert kind not in block.relations
        return
    found = block.relations[kind]
    np.testing.assert_array_equal(np.diff(found.indptr), expected)
    assert found.num_src == block.src_counts[source]
    assert_edges_are_in_the_lists(found, edges, vertices[source], vertices[destination])
    assert shares[found.edges].all()
    amounts = shares * (edges.fields["weight"].astype(float) if weight else 1.0)
    rows = vertices[destination][: block.src_counts[destination]]
    exact = [amounts[edges.indptr[v] : edges.indptr[v + 1]].sum() for v in rows]
    np.testing.assert_allclose(found.totals, exact, rtol=1e-5)


def test_whole_neighbourhoods_are_those_of_the_homogeneous_sampler():
    graph = directed_graph()
    typed = TypedNeighbourSampler(graph, [ALL, ALL], edges=True).sample({"node": np.arange(30)}, KEY)
    plain = NeighbourSampler(graph, [ALL, ALL], edges=True).sample(np.arange(30), KEY)
    np.testing.assert_array_equal(typed.vertices["node"], plain.vertices["node"])
    for left, right in zip(typed.blocks, plain.blocks, strict=True):
        (block,) = left.relations.values()
        np.testing.assert_array_equal(block.indptr, right.indptr)
        np.testing.assert_array_equal(block.indices, right.indices)
        np.testing.assert_array_equal(block.edges, right.edges)


@pytest.mark.parametrize("weight", [None, "w"])
@pytest.mark.parametrize("replace", [False, True])
def test_sums_and_means_of_a_relation_are_unbiased(replace, weight):
    graph, centres, leaves = stars(5000)
    batch = TypedNeighbourSampler(graph, [4], replace, weight, totals=True).sample({"node": centres}, KEY)
    kind = ("node", "to", "node")
    values = graph.nodes["node"].fields["h"]
    shares = graph.edges[kind].fields["w"][: len(leaves)].astype(float) if weight else np.ones(len(leaves))
    total, mean = estimates(MiniBatch({"node": centres}, batch.vertices, [batch.blocks[0].relations[kind]]), values)
    assert_unbiased(total, shares @ values[leaves])
    assert_unbiased(mean, shares @ values[leaves] / shares.sum())


def test_a_relation_is_followed_only_where_it_has_a_fan_out():
    graph = shop()
    seeds = {"item": np.arange(20)}
    sampler = TypedNeighbourSampler(graph, [{BOUGHT: 3, SIMILAR: 0}, {edge_key(KNOWS): 2, "user__bought__item": 1}])
    outer, inner = sampler.sample(seeds, KEY).blocks
    assert list(inner.relations) == [BOUGHT]
    assert list(outer.relations) == [BOUGHT, KNOWS]
    assert (np.diff(inner.relations[BOUGHT].indptr) <= 3).all()
    assert (np.diff(outer.relations[KNOWS].indptr) <= 2).all()
    assert len(outer.relations[KNOWS].indptr) == inner.src_counts["user"] + 1
    only = TypedNeighbourSampler(graph, [{KNOWS: 2}]).sample(seeds, KEY)  # nothing leads from users to items here
    assert only.num_edges == 0
    assert only.blocks[0].relations == {}


def test_relations_of_one_pair_of_types_draw_apart():
    graph = power_law_graph()
    (edges,) = graph.edges.values()
    twice = Graph(graph.nodes, {("node", "a", "node"): edges, ("node", "b", "node"): edges})
    block = TypedNeighbourSampler(twice, [4], edges=True).sample({"node": np.arange(100)}, KEY).blocks[0]
    a, b = block.relations.values()
    assert not np.array_equal(a.edges, b.edges)


def test_the_same_on_any_number_of_threads():
    sampler = TypedNeighbourSampler(shop(), [4, 3], weight="w", edges=True)

    def sample(index):
        return sampler.sample({"item": np.arange(index, 200, 7), "user": np.arange(5)}, BatchKey(0, 0, index))

    alone = [sample(index) for index in range(10)]
    for threads in (2, 4):
        with ThreadPoolExecutor(threads) as pool:
            for a, b in zip(alone, pool.map(sample, range(10)), strict=True):
                same_batch(a, b)


def test_original_numbers_name_vertices_in_the_hash(tmp_path):
    from penstock.partition import Cut, cut

    graph = shop()
    parts = cut(graph, Cut(1, 3), tmp_path / "p")
    original = {name: np.asarray(parts.original(name)) for name in graph.nodes}
    seeds = np.arange(0, 200, 9)
    whole = TypedNeighbourSampler(graph, [4, 3], weight="w").sample({"item": seeds}, KEY)
    relabelled = TypedNeighbourSampler(parts.part(0), [4, 3], weight="w", original=original)
    again = relabelled.sample({"item": parts.new_ids(seeds, "item")}, KEY)
    for name, vertices in again.vertices.items():
        np.testing.assert_array_equal(whole.vertices[name], original[name][vertices])


def test_bad_requests_get_a_sentence():
    graph = shop()
    with refused("option-missing"):
        TypedNeighbourSampler(graph, [])
    for fanouts in ([0], [-2], [{}], [{KNOWS: 0}], [{KNOWS: -3}]):
        with refused("value-out-of-range"):
            TypedNeighbourSampler(graph, fanouts)
    with refused("unknown-name user__sold__item user__bought__item"):
        TypedNeighbourSampler(graph, [{("user", "sold", "item"): 3}])
    sampler = TypedNeighbourSampler(graph, [2])
    with refused("unknown-name shop ['user item']"):
        sampler.sample({"shop": np.arange(3)}, KEY)
    with refused("id-out-of-range item 0..199"):
        sampler.sample({"item": np.array([200])}, KEY)
    with refused("shape-mismatch"):
        sampler.sample({"item": np.array([0.5])}, KEY)
    with refused("duplicate 3"):
        sampler.sample({"user": np.array([1]), "item": np.array([3, 3])}, KEY)
    assert sampler.sample({"user": np.array([1])}, KEY).blocks[0].dst_counts == {"user": 1, "item": 0}
    with refused("unsupported-combination"):
        NeighbourSampler(graph, [2])
    with refused("unsupported-combination"):
        NeighbourSampler(graph, [2], time="t")
