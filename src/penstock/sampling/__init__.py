"""Neighbourhoods: from seeds to blocks. Every random choice is a hash of (seed, epoch, batch, hop, original vertex).

`block` is what comes out, `neighbours` the usual sampler; kernels work on one batch a call and release the lock, so
that several threads prepare several batches.
"""

from penstock.sampling.block import Block, MiniBatch, TypedBatch, TypedBlock
from penstock.sampling.key import BatchKey
from penstock.sampling.neighbours import ALL, NeighbourSampler

__all__ = ["ALL", "BatchKey", "Block", "MiniBatch", "NeighbourSampler", "TypedBatch", "TypedBlock"]
