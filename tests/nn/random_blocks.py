"""Random blocks for tests of layers: empty rows, isolated vertices, repeated edges, self loops, no edges at all."""

import numpy as np
import torch

from penstock.sampling import Block


def random_block(num_src=9, num_dst=5, edges=14, weights=False, totals=True, seed=0, dtype=np.int32):
    """A block whose rows are drawn freely; totals are no less than what was drawn."""
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(edges, rng.dirichlet(np.full(num_dst, 0.7))) if num_dst else np.zeros(0, np.int64)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    block = Block(indptr, rng.integers(0, num_src, edges).astype(dtype), num_src)
    if weights:
        block.weights = (rng.random(edges) + 0.1).astype(np.float32)
    if totals:
        drawn = np.pad(counts, (0, num_src - num_dst))
        block.totals = (drawn + rng.integers(0, 5, num_src)).astype(np.float32)
    return block


def whole_block(count=12, pairs=25, seed=0):
    """The full neighbourhoods of a small symmetric graph without self loops, some vertices isolated."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, count - 2, (pairs, 2))
    ends = np.unique(np.sort(ends[ends[:, 0] != ends[:, 1]], axis=1), axis=0)
    src, dst = np.concatenate([ends[:, 0], ends[:, 1]]), np.concatenate([ends[:, 1], ends[:, 0]])
    order = np.lexsort((src, dst))
    degrees = np.bincount(dst, minlength=count)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    return Block(indptr, src[order].astype(np.int32), count, totals=degrees.astype(np.float32))


def typed_block(seed=0, weights=False):
    """Two node types, three relations, one of them without edges."""
    num_src, num_dst = {"a": 9, "b": 7}, {"a": 4, "b": 3}
    relations = {
        ("a", "r", "a"): random_block(9, 4, 9, weights, seed=seed),
        ("b", "s", "a"): random_block(7, 4, 6, weights, seed=seed + 1),
        ("a", "t", "b"): random_block(9, 3, 5, weights, seed=seed + 2),
        ("b", "u", "b"): random_block(7, 3, 0, weights, seed=seed + 3),
    }
    return Block.of_relations(relations, num_src, num_dst)


def edge_index(block):
    """[2, edges] as PyG takes it."""
    return torch.from_numpy(np.stack([block.indices, block.destinations()]).astype(np.int64))


def dense(block):
    """[num_dst, num_src] float64: how often, or with what weight, each destination reads each source."""
    matrix = np.zeros((block.num_dst, block.num_src))
    np.add.at(matrix, (block.destinations(), block.indices), 1.0 if block.weights is None else block.weights)
    return torch.from_numpy(matrix)


def rows(count, width, seed=0, dtype=torch.float32, grad=True):
    """A random matrix."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=generator, dtype=dtype).requires_grad_(grad)
