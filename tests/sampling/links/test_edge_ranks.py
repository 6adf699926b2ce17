"""Ranks against a sort of every candidate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from link_graphs import RATES, shop_graph, true_pairs

from penstock.sampling.links import dot_product, drawn_candidates, known_edges, ranks, ranks_of_scores
from random_graphs import directed_graph, graphs
from refusals import refused


def brute_rank(scores, own, left_out):
    """Mean of the place when ties are won and the place when they are lost."""
    others = [scores[v] for v in range(len(scores)) if v != own and v not in left_out]
    best = 1 + sum(score > scores[own] for score in others)
    return (best + best + sum(score == scores[own] for score in others)) / 2


def whole_numbers(rng, *shape):
    """Embeddings whose products are exact and often equal."""
    return rng.integers(-2, 3, shape).astype(np.float32)


@given(graphs(), st.integers(0, 99), st.booleans(), st.sampled_from(["destination", "source"]), st.integers(1, 2000))
def test_ranks_among_all_equal_brute_force(graph, seed, filtered, corrupt, block_bytes):
    edge_type = graph.edge_types[seed % len(graph.edges)]
    edges, rng = graph.edges[edge_type], np.random.default_rng(seed)
    sources = whole_numbers(rng, graph.nodes[edge_type[0]].count, 3)
    destinations = whole_numbers(rng, graph.nodes[edge_type[2]].count, 3)
    held = edges.held_out["test"]
    known = known_edges(graph, edge_type, [held], reverse="none")
    true = true_pairs(edges) | set(map(tuple, held.tolist()))
    if corrupt == "destination":
        found = ranks(dot_product(sources, destinations), held, known, "all", filtered, corrupt, 0, block_bytes)
    else:
        found = ranks(dot_product(destinations, sources), held, known, "all", filtered, corrupt, 0, block_bytes)
    scores = sources @ destinations.T
    for rank, (source, destination) in zip(found, held.tolist(), strict=True):
        if corrupt == "destination":
            left_out = {b for a, b in true if a == source} if filtered else set()
            assert rank == brute_rank(scores[source], destination, left_out)
        else:
            left_out = {a for a, b in true if b == destination} if filtered else set()
            assert rank == brute_rank(scores[:, destination], source, left_out)


@pytest.mark.parametrize("corrupt", ["destination", "source"])
@pytest.mark.parametrize("filtered", [True, False])
def test_ranks_among_drawn_candidates_equal_brute_force(corrupt, filtered):
    graph = shop_graph()
    rng = np.random.default_rng(0)
    table = whole_numbers(rng, 40, 25)
    pairs = np.stack([rng.integers(0, 40, 30), rng.integers(0, 25, 30)], 1)
    known = known_edges(graph, RATES, [pairs])
    true = true_pairs(graph.edges[RATES]) | set(map(tuple, pairs.tolist()))
    seen = []

    def score_block(kept, others):
        scores = table[kept[:, None], others] if corrupt == "destination" else table[others, kept[:, None]]
        seen.extend(zip(kept.tolist(), others.tolist(), scores.tolist(), strict=True))
        return scores

    found = ranks(score_block, pairs, known, 12, filtered, corrupt, block_bytes=5 * 8 * 13)
    again = ranks(score_block, pairs, known, 12, filtered, corrupt)
    np.testing.assert_array_equal(found, again)
    for rank, pair, (kept, others, scores) in zip(found, pairs.tolist(), seen[:30], strict=True):
        assert others[0] == (pair[1] if corrupt == "destination" else pair[0])
        assert others[0] not in others[1:]
        drawn = [(kept, other) if corrupt == "destination" else (other, kept) for other in others]
        left_out = {i for i, name in enumerate(drawn) if filtered and i and name in true}
        assert not left_out
        assert rank == brute_rank(scores, 0, left_out)
    assert (ranks(score_block, pairs, known, 12, filtered, corrupt, seed=1) != found).any()


@pytest.mark.parametrize("corrupt", ["destination", "source"])
def test_candidates_are_known_before_they_are_scored(corrupt):
    graph = shop_graph()
    known, pairs = known_edges(graph, RATES), graph.edges[RATES].edge_index().T[:40]
    read = set()

    def score(kept, others):
        read.update(others[:, 1:].ravel().tolist())
        return np.zeros(others.shape)

    ranks(score, pairs, known, 3, corrupt=corrupt, block_bytes=200)
    assert drawn_candidates(pairs, known, 3, corrupt=corrupt).tolist() == sorted(read)


def test_a_model_that_scores_all_alike_is_in_the_middle():
    graph = directed_graph(101, 500)
    known = known_edges(graph)
    level = dot_product(np.ones((101, 4)), np.ones((101, 4)))
    pairs = np.array([[0, 5], [7, 100]])
    assert ranks(level, pairs, known, "all", filtered=False).tolist() == [51, 51]
    assert ranks(level, pairs, known, 20, filtered=False).tolist() == [11, 11]


@given(st.integers(0, 99), st.integers(1, 10), st.integers(0, 15))
def test_ranks_of_given_scores(seed, rows, width):
    rng = np.random.default_rng(seed)
    positive, shared = whole_numbers(rng, rows), whole_numbers(rng, width)
    own, counts = whole_numbers(rng, rows, width), rng.random((rows, width)) < 0.7
    wanted = [brute_rank([score, *shared], 0, ()) for score in positive]
    np.testing.assert_array_equal(ranks_of_scores(positive, shared), wanted)
    wanted = [
        brute_rank([score, *others], 0, set(np.flatnonzero(~ok) + 1))
        for score, others, ok in zip(positive, own, counts, strict=True)
    ]
    np.testing.assert_array_equal(ranks_of_scores(positive, own, counts), wanted)


def test_no_pairs_have_no_ranks():
    known = known_edges(directed_graph(10, 20))
    level = dot_product(np.ones((10, 2)), np.ones((10, 2)))
    for candidates in ("all", 3):
        assert len(ranks(level, np.empty((0, 2), np.int64), known, candidates)) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"candidates": 0}, "value-out-of-range 1"),
        ({"candidates": "most"}, "value-out-of-range all"),
        ({"corrupt": "both"}, "unknown-name"),
        ({"pairs": np.array([[0, 99]])}, "id-out-of-range 99"),
        ({"score_block": lambda kept, others: np.zeros((1, 3))}, "shape-mismatch"),
        ({"score_block": lambda kept, others: np.full((1, 10), np.nan)}, "not-finite"),
    ],
)
def test_mistakes_are_one_sentence(arguments, sentence):
    graph = directed_graph(10, 20)
    usual = {
        "score_block": dot_product(np.ones((10, 2)), np.ones((10, 2))),
        "pairs": np.array([[0, 1]]),
        "known": known_edges(graph),
    }
    with refused(sentence):
        ranks(**{**usual, **arguments})
