"""Made knowledge graphs with what WN18RR has: symmetric relations, hierarchies, few relations and few triples.

`symmetric_pairs` is one symmetric relation between random pairs: a held-out triple is the reverse of one in training,
and nothing else says what it is. `wordnet_like` has eleven relations in about WN18RR's shares: a hierarchy of nouns and
one of verbs that mirrors most of it, derivationally related forms that join the two, other symmetric relations between
neighbours, parts and members of a whole, and topics with many members each. Triples are held out at random, so that of
a symmetric pair the reverse is in training most of the time.
Run: python benchmarks/made_triples.py wordnet-like.npz [--entities 40000] [--seed 0]
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

Splits = dict[str, Any]
"""`train`, `valid` and `test`, [m, 3] int64 each: head, relation, tail."""

SHARES = {
    "hypernym": 0.40,
    "derivationally_related_form": 0.342,
    "member_meronym": 0.085,
    "has_part": 0.055,
    "synset_domain_topic_of": 0.036,
    "instance_hypernym": 0.034,
    "also_see": 0.015,
    "verb_group": 0.013,
    "member_of_domain_region": 0.011,
    "member_of_domain_usage": 0.007,
    "similar_to": 0.002,
}
"""WN18RR's relations and their shares of its triples."""
SYMMETRIC = ("derivationally_related_form", "also_see", "verb_group", "similar_to")
_TRIPLES_AN_ENTITY = 2.27
_HELD_OUT = 0.034
"""For validation, and as many for the test."""


def symmetric_pairs(entities: int = 1500, pairs: int = 5000, seed: int = 0) -> Splits:
    """Random pairs, and three fifths of their reverses, in training; the other reverses are to be found."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, entities, (2 * pairs, 2))
    drawn = np.unique(np.sort(drawn[drawn[:, 0] != drawn[:, 1]], 1), axis=0)
    drawn = rng.permuted(rng.permutation(drawn)[:pairs], axis=1)
    there, back = _triples(drawn, 0), _triples(drawn[:, ::-1], 0)
    known = len(back) * 3 // 5
    half = known + (len(back) - known) // 2
    return {"train": np.concatenate([there, back[:known]]), "valid": back[known:half], "test": back[half:]}


def wordnet_like(entities: int = 40_000, seed: int = 0) -> Splits:
    """Eleven relations between nouns (the first 70 %) and verbs."""
    rng = np.random.default_rng(seed)
    nouns = entities * 7 // 10
    verbs, total = entities - nouns, int(_TRIPLES_AN_ENTITY * entities)
    wanted = {name: int(share * total) for name, share in SHARES.items()}
    parent = _tree(rng, nouns)
    of_verbs = parent[:verbs].copy()
    # A verb's parent is that of its noun, mostly: hierarchies tell of each other through related forms.
    strays = rng.random(verbs) < 0.2
    of_verbs[strays] = (rng.random(int(strays.sum())) * np.maximum(np.flatnonzero(strays), 1)).astype(np.int64)
    tree = np.concatenate([parent, nouns + of_verbs])
    child = np.concatenate([np.arange(1, nouns), nouns + np.arange(1, verbs)])
    up = np.stack([child, tree[child]], 1)
    number = np.arange(verbs)
    forms = np.concatenate([np.stack([number, nouns + number], 1), _siblings(rng, parent, nouns, entities)])
    leaves = np.setdiff1d(np.arange(nouns), parent)
    found: dict[str, Any] = {
        "hypernym": _some(rng, up, wanted["hypernym"]),
        "derivationally_related_form": _some(rng, forms, wanted["derivationally_related_form"] // 2),
        "instance_hypernym": _to_hubs(rng, leaves, nouns // 40, wanted["instance_hypernym"]),
        "member_meronym": _some(rng, np.stack([parent[parent[leaves]], leaves], 1), wanted["member_meronym"]),
        "has_part": _to_hubs(rng, np.arange(nouns), nouns // 8, wanted["has_part"])[:, ::-1],
        "synset_domain_topic_of": _to_hubs(rng, np.arange(entities), 200, wanted["synset_domain_topic_of"]),
        "member_of_domain_region": _to_hubs(rng, leaves, 80, wanted["member_of_domain_region"])[:, ::-1],
        "member_of_domain_usage": _to_hubs(rng, leaves, 20, wanted["member_of_domain_usage"])[:, ::-1],
    }
    for name in SYMMETRIC[1:]:
        found[name] = _siblings(rng, tree, entities, max(2, wanted[name] // 2))
    triples = [_triples(found[name], place) for place, name in enumerate(SHARES)]
    triples += [_triples(found[name][:, ::-1], place) for place, name in enumerate(SHARES) if name in SYMMETRIC]
    return _held_out(rng, np.unique(np.concatenate(triples), axis=0))


def save(path: Path, splits: Splits) -> None:
    """Write an archive that `ps.load` reads."""
    every = np.concatenate(list(splits.values()))
    counts = {"num_entities": every[:, [0, 2]].max() + 1, "num_relations": every[:, 1].max() + 1}
    np.savez_compressed(path, **splits, **counts)


def _triples(pairs: Any, relation: int) -> Any:
    return np.stack([pairs[:, 0], np.full(len(pairs), relation), pairs[:, 1]], 1).astype(np.int64)


def _tree(rng: Any, count: int) -> Any:
    """Parents of 0..count: an earlier vertex, or the parent of one, so that some have many children. 0 is the root."""
    parent = np.zeros(count, np.int64)
    near, copies = rng.random(count), rng.random(count) < 0.5
    for vertex in range(1, count):
        other = int(near[vertex] * vertex)
        parent[vertex] = parent[other] if copies[vertex] else other
    return parent


def _siblings(rng: Any, parent: Any, count: int, many: int) -> Any:
    """Pairs of vertices with the same parent."""
    order = np.lexsort((rng.random(count), parent[:count]))
    first, second = order[:-1], order[1:]
    return _some(rng, np.stack([first, second], 1)[parent[first] == parent[second]], many)


def _to_hubs(rng: Any, vertices: Any, hubs: int, many: int) -> Any:
    """Pairs of a vertex and one of a few hubs, some of which have many more than others."""
    chosen = rng.choice(vertices, min(many, len(vertices)), replace=False)
    return np.stack([chosen, (hubs * rng.random(len(chosen)) ** 3).astype(np.int64)], 1)


def _some(rng: Any, pairs: Any, many: int) -> Any:
    return pairs[rng.permutation(len(pairs))[:many]]


def _held_out(rng: Any, triples: Any) -> Splits:
    """Random triples held out, of entities and relations that training knows."""
    triples = rng.permutation(triples[triples[:, 0] != triples[:, 2]])
    counts = np.bincount(triples[:, [0, 2]].ravel())
    spare = np.flatnonzero((counts[triples[:, 0]] > 2) & (counts[triples[:, 2]] > 2))
    size = int(_HELD_OUT * len(triples))
    rest = np.ones(len(triples), bool)
    rest[spare[: 2 * size]] = False
    train, known = triples[rest], np.unique(triples[rest][:, [0, 2]])
    split = {"train": train}
    for name, some in (("valid", triples[spare[:size]]), ("test", triples[spare[size : 2 * size]])):
        split[name] = some[np.isin(some[:, 0], known) & np.isin(some[:, 2], known)]
    return split


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--entities", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    splits = wordnet_like(asked.entities, asked.seed)
    save(asked.out, splits)
    print(f"{asked.out}: " + ", ".join(f"{len(rows):,} {name}" for name, rows in splits.items()))


if __name__ == "__main__":
    main()
