"""How many bytes of tokens go from every rank of an expert group to every other."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import key_of, unit_draws


def token_bytes(ranks: int, sent: int, skew: float, seed: int, layer: int) -> Array:
    """int64 [ranks, ranks]: each rank sends `sent` bytes, to the ranks in proportion to their experts' popularity.

    The k-th most popular rank has a weight of 1 / k^skew; who is popular is drawn anew for every layer, and how the
    tokens of each rank fall is drawn around that within a fifth. All microbatches are alike.
    """
    if skew == 0:
        return np.full((ranks, ranks), round(sent / ranks), np.int64)
    drawn, spread = np.empty(ranks), np.empty(ranks * ranks)
    unit_draws(key_of(seed, f"popular experts of layer {layer}"), 0, drawn)
    unit_draws(key_of(seed, f"tokens of layer {layer}"), 0, spread)
    weights = 1.0 / (1.0 + np.argsort(np.argsort(drawn))) ** skew
    shares = weights * (0.8 + 0.4 * spread.reshape(ranks, ranks))
    return np.asarray(np.round(sent * shares / shares.sum(axis=1, keepdims=True)), np.int64)
