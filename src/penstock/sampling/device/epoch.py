"""An epoch on the device: its items in the hash's order, and the keys of its batches' draws."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.sampling.block import Purpose
from penstock.traced import skips_kernels

NEVER = 0x7FFFFFFF
"""In `failed_at`: no batch has failed; in a table of places: the vertex is not in the batch."""
_BLOCK = 1024


class DeviceEpoch:
    """The inputs of an epoch's draws: the `order` of the items and, for each batch, the keys of its draws.

    Batch k has `counts[k]` items, from position k * `batch_size` of the order on. All have fixed addresses, so that
    captured launches find the next epoch's values there; `cursor` is the number of the next batch, and `failed_at` that
    of the first that lacked room.
    """

    def __init__(self, items: int, batch_size: int, keys: int, device: torch.device) -> None:
        self.items, self.batch_size = items, batch_size
        self.batches = -(-items // batch_size)
        self.order = torch.zeros(items, dtype=torch.int32, device=device)
        self.keys = torch.zeros((self.batches, keys), dtype=torch.int64, device=device)
        self.counts = torch.full((max(1, self.batches),), batch_size, dtype=torch.int32, device=device)
        self.counts[-1:].fill_(items - batch_size * max(0, self.batches - 1))
        self.cursor = torch.zeros(1, dtype=torch.int32, device=device)
        self.failed_at = torch.full((1,), NEVER, dtype=torch.int32, device=device)


def shuffled(names: Tensor, key: np.uint64) -> Tensor:
    """Positions of `names` (int64) in the order of their hashes under a key, as `pipeline.Schedule` orders an epoch."""
    draws = torch.empty_like(names)
    signed = int(np.uint64(key).astype(np.int64)) if key else 0
    stream = torch.tensor([signed], device=names.device)
    if not skips_kernels():
        from penstock.sampling.device.kernels import hash_names

        hash_names[(-(-len(names) // _BLOCK),)](names, draws, stream, len(names), B=_BLOCK)
    return torch.sort(draws, stable=True).indices


def batch_keys(seed: int, epoch: int, batches: int, purposes: Sequence[Purpose]) -> Array:
    """[batches, purposes] int64 bits of the keys of an epoch's batches."""
    columns = [purpose.keys(seed, epoch, batches) for purpose in purposes]
    return np.stack(columns, axis=1).view(np.int64)
