"""Samplers: from seeds to blocks. Every random choice is a hash of (seed, epoch, batch, hop, original vertex).

`block` is the output, and the key that identifies a batch. `sampler_table` has the samplers by name, `entry` is what
each of them declares. `neighbours` and `typed` are the neighbour samplers, of graphs with one type and with several;
both draw through `lists` with the kernels of `draws`: uniformly, by edge weight, in time (`temporal`) and without
excluded edges (`exclusion`), and number what is drawn. `labor`, `layerwise`, `saint`, `cluster`, `explained` and
`undrawn` are the other samplers. `homogeneous` is a graph as samplers of whole lists see it. `device/` samples on a
GPU, `parts/` a partitioned graph; `links/` has batches of edges and `triples/` batches of triples. Kernels work on one
batch at a time and release the interpreter lock, so that several threads prepare several batches.
"""

from typing import TYPE_CHECKING

from penstock.registry import lazy_names

if TYPE_CHECKING:
    from penstock.sampling.block import BatchKey, Block, MiniBatch
    from penstock.sampling.neighbours import ALL, NeighbourSampler
    from penstock.sampling.typed import TypedNeighbourSampler

__all__ = [
    "ALL",
    "BatchKey",
    "Block",
    "MiniBatch",
    "NeighbourSampler",
    "TypedNeighbourSampler",
]

# Imported on first use, so that reading the options (a job, the command line's help) does not load kernels.
__getattr__, __dir__ = lazy_names(__name__)
