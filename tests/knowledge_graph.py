"""A small knowledge graph that can be learned: families, in which some relations follow from others."""

import numpy as np

from penstock import EdgeSet, Graph, NodeSet
from penstock.graph.csr import build_lists

RELATIONS = ("next", "previous", "twin", "ahead")
TRIPLES = {"model": "embedding", "embedding": 16, "batch_size": 40, "embedding_lr": 0.05, "lr": 0.05, "corrupt": "both"}
SOFTMAX = {"negatives": "all", "loss": "softmax"}
SCORER_CASES = {
    "distmult": {"scorer": "distmult", "inverse_relations": True, **SOFTMAX},
    "complex": {"scorer": "complex", "regulariser": "n3", "regularisation": 0.01, **SOFTMAX},
    "transe": {"scorer": "transe", "margin": 3.0, "loss": "margin", "negatives_per_edge": 16},
    "rotate": {"scorer": "rotate", "margin": 4.0, "adversarial": 1.0, "negatives": "joint", "negatives_per_edge": 32},
}


def family_triples(count=48, seed=0):
    """Triples [m, 3] on a ring: next, its inverse, a symmetric relation, and two steps of next; some are held out."""
    at = np.arange(count)
    pairs = [(at, (at + 1) % count), (at, (at - 1) % count), (at, (at + count // 2) % count), (at, (at + 2) % count)]
    triples = np.concatenate([np.stack([h, np.full(count, r), t], 1) for r, (h, t) in enumerate(pairs)])
    order = np.random.default_rng(seed).permutation(len(triples))
    cut = len(triples) // 10
    return {"val": triples[order[:cut]], "test": triples[order[cut : 2 * cut]], "train": triples[order[2 * cut :]]}


def family_graph(count=48, seed=0, hold_out=True):
    """The same as a graph with an edge type for each relation."""
    triples, edges = family_triples(count, seed), {}
    if not hold_out:
        triples = {"train": np.concatenate(list(triples.values()))}
    for number, relation in enumerate(RELATIONS):
        some = {name: rows[rows[:, 1] == number][:, [0, 2]] for name, rows in triples.items()}
        train = some.pop("train")
        indptr, indices, _ = build_lists(train[:, 0].copy(), train[:, 1].copy(), count, count)
        edges["entity", relation, "entity"] = EdgeSet(indptr, indices, held_out=some)
    return Graph({"entity": NodeSet(count)}, edges, "families")


def symmetric_graph(count=300, pairs=800, seed=0):
    """One symmetric relation between random pairs: two fifths of the reverses are held out, and nothing else is."""
    rng = np.random.default_rng(seed)
    drawn = np.unique(np.sort(rng.integers(0, count, (2 * pairs, 2)), 1), axis=0)
    there = rng.permuted(rng.permutation(drawn[drawn[:, 0] != drawn[:, 1]])[:pairs], axis=1)
    back, known = there[:, ::-1], pairs * 3 // 5
    train = np.concatenate([there, back[:known]])
    indptr, indices, _ = build_lists(train[:, 0].copy(), train[:, 1].copy(), count, count)
    held = {"val": back[known::2].copy(), "test": back[known + 1 :: 2].copy()}
    edges = {("entity", "like", "entity"): EdgeSet(indptr, indices, held_out=held)}
    return Graph({"entity": NodeSet(count)}, edges, "alike")


def shop_graph(seed=0):
    """Two node types: people buy things and know each other."""
    rng, edges = np.random.default_rng(seed), {}
    for kind, size, many in (
        (("person", "buys", "thing"), (30, 20), 90),
        (("person", "knows", "person"), (30, 30), 80),
    ):
        pairs = np.unique(np.stack([rng.integers(0, n, many) for n in size], 1), axis=0)
        rng.shuffle(pairs)
        held = {"val": pairs[:8], "test": pairs[8:16]}
        indptr, indices, _ = build_lists(pairs[16:, 0].copy(), pairs[16:, 1].copy(), *size)
        edges[kind] = EdgeSet(indptr, indices, held_out=held)
    return Graph({"person": NodeSet(30), "thing": NodeSet(20)}, edges, "shop")
