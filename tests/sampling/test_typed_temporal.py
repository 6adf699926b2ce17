"""Sampling several types by time: nothing later than the seed at any hop of any relation, a tree for each seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import EdgeSet, Graph, NodeSet
from penstock.graph.csr import build_lists
from penstock.sampling import ALL, BatchKey, NeighbourSampler, TypedNeighbourSampler
from refusals import refused

KEY = BatchKey(0, 0, 0)
COUNTS = {"user": 30, "item": 20}
KINDS = [("user", "bought", "item"), ("item", "of", "user"), ("user", "knows", "user"), ("item", "like", "item")]
TIMELESS = ("item", "like", "item")


def shop(seed, edges=150):
    rng = np.random.default_rng(seed)
    nodes = {name: NodeSet(count, {"t": rng.integers(0, 50, count)}) for name, count in COUNTS.items()}
    relations = {}
    for kind in KINDS:
        ends = rng.integers(0, COUNTS[kind[0]], edges), rng.integers(0, COUNTS[kind[2]], edges)
        indptr, indices, _ = build_lists(*ends, COUNTS[kind[0]], COUNTS[kind[2]])
        fields = {} if kind == TIMELESS else {"t": rng.integers(0, 50, edges)}
        relations[kind] = EdgeSet(indptr, indices, fields)
    return Graph(nodes, relations, "shop")


def roots_of(batch):
    """By type, the seed from which each row was reached; checks that no row is reached from two."""
    roots, first = {name: np.full(len(rows), -1) for name, rows in batch.vertices.items()}, 0
    for name, seeds in batch.seeds.items():
        roots[name][: len(seeds)] = first + np.arange(len(seeds))
        first += len(seeds)
    for block in reversed(batch.blocks):
        for (source, _, target), part in block.relations.items():
            reader = roots[target][part.destinations()]
            assert (reader >= 0).all()
            new = roots[source][part.indices] < 0
            roots[source][part.indices[new]] = reader[new]
            np.testing.assert_array_equal(roots[source][part.indices], reader)
    return roots


@settings(max_examples=30)
@given(st.integers(0, 99), st.lists(st.sampled_from([1, 3, ALL]), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_nothing_is_later_than_its_seed(seed, fanouts, replace, of_nodes):
    graph, rng = shop(seed), np.random.default_rng(seed)
    seeds = {name: rng.integers(0, count, 6) for name, count in COUNTS.items()}  # seeds repeat
    times = {name: rng.integers(-5, 55, 6) for name in COUNTS}
    field = "node:t" if of_nodes else "t"
    sampler = TypedNeighbourSampler(graph, fanouts, replace, time=field, totals=True, edges=True)
    batch = sampler.sample(seeds, KEY, times=times)
    roots, every = roots_of(batch), np.concatenate(list(times.values()))
    for block, fanout in zip(reversed(batch.blocks), fanouts, strict=True):
        for kind, part in block.relations.items():
            edges, limits = graph.edges[kind], every[roots[kind[2]]]
            known = graph.nodes[kind[0]].fields["t"][edges.indices] if of_nodes else edges.fields.get("t")
            sources, targets = batch.vertices[kind[0]], batch.vertices[kind[2]]
            np.testing.assert_array_equal(edges.indices[part.edges], sources[part.indices])
            if known is None:
                known = np.full(edges.count, -99)
            assert (known[part.edges] <= limits[part.destinations()]).all()
            for row in range(part.num_dst):
                listed = slice(*edges.indptr[targets[row] : targets[row] + 2])
                admissible = (known[listed] <= limits[row]).sum()
                assert part.totals[row] == admissible
                most = admissible if fanout == ALL else fanout if replace else min(fanout, admissible)
                assert part.indptr[row + 1] - part.indptr[row] == (most if admissible else 0)


def test_one_type_is_what_the_plain_sampler_draws():
    graph = shop(3)
    kind = ("user", "knows", "user")
    only = Graph({"user": graph.nodes["user"]}, {kind: graph.edges[kind]}, "users")
    seeds, times = np.array([4, 4, 9]), np.array([10, 40, 25])
    plain = NeighbourSampler(only, [ALL, ALL], time="t", edges=True).sample(seeds, KEY, times=times)
    typed = TypedNeighbourSampler(only, [ALL, ALL], time="t", edges=True).sample(
        {"user": seeds}, KEY, times={"user": times}
    )
    np.testing.assert_array_equal(plain.vertices["user"], typed.vertices["user"])
    for one, two in zip(plain.blocks, typed.blocks, strict=True):
        np.testing.assert_array_equal(one.edges, two.relations[kind].edges)


def test_bad_times_get_a_sentence():
    graph, seeds = shop(0), {"user": np.array([1, 2]), "item": np.array([3])}
    sampler = TypedNeighbourSampler(graph, [2], time="t")
    with refused("option-missing user item"):
        sampler.sample(seeds, KEY)
    with refused("option-missing item"):
        sampler.sample(seeds, KEY, times={"user": np.zeros(2)})
    with refused("shape-mismatch 1 2"):
        sampler.sample(seeds, KEY, times={"user": np.zeros(1), "item": np.zeros(2)})
    with refused("unsupported-combination time"):
        TypedNeighbourSampler(graph, [2]).sample(seeds, KEY, times={"user": np.zeros(2), "item": np.zeros(1)})
    for time in ("when", "node:when"):
        with refused("field-missing when"):
            TypedNeighbourSampler(graph, [2], time=time)


@pytest.mark.parametrize("ages", [False, True])
def test_ages_of_edges(ages):
    graph = shop(1)
    kind = ("user", "knows", "user")
    only = Graph({"user": graph.nodes["user"]}, {kind: graph.edges[kind]}, "users")
    seeds, times = np.array([4, 7, 9]), np.array([30, 40, 25])
    for time, of_nodes in (("t", False), ("node:t", True)):
        sampler = NeighbourSampler(only, [3, 3], time=time, edges=True, ages=ages)
        batch = sampler.sample(seeds, KEY, times=times)
        roots = np.full(len(batch.vertices["user"]), -1)
        roots[:3] = np.arange(3)
        for block in reversed(batch.blocks):
            roots[block.indices] = roots[block.destinations()]
            known = only.nodes["user"].fields["t"][batch.vertices["user"][block.indices]]
            known = known if of_nodes else only.edges[kind].fields["t"][block.edges]
            expected = times[roots[block.destinations()]] - known
            assert (block.ages is None) if not ages else np.array_equal(block.ages, expected.astype(np.float32))
