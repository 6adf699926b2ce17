"""An epoch made on the device: its items in the hash's order, and the keys of its batches' draws."""

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.graph.hashing import keys_of
from penstock.sampling.key import BATCH
from penstock.traced import is_traced

_BLOCK = 1024


def shuffled(names: Tensor, key: np.uint64) -> Tensor:
    """Places of `names` (int64) in the order of their hashes under a key, as `pipeline.Schedule` orders an epoch."""
    draws = torch.empty_like(names)
    signed = int(np.uint64(key).astype(np.int64)) if key else 0
    stream = torch.tensor([signed], device=names.device)
    if not is_traced():
        from penstock.sampling.device.kernels import hash_names

        hash_names[(-(-len(names) // _BLOCK),)](names, draws, stream, len(names), B=_BLOCK)
    return torch.sort(draws, stable=True).indices


def batch_keys(seed: int, epoch: int, batches: int, purposes: list[str]) -> Array:
    """[batches, purposes] int64 bits of `BatchKey(seed, epoch, batch).purpose(...)`."""
    columns = [keys_of(seed, BATCH, epoch, batches, purpose) for purpose in purposes]
    return np.stack(columns, axis=1).view(np.int64)
