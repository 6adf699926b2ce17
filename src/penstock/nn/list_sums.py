"""Sums over lists that name rows of a whole matrix, read where they stand, on the host or on a device; without
gradients, which whoever has the lists finds by reading them the other way round."""

import torch
from torch import Tensor

from penstock.nn.aggregation import as_rows, gather_rows
from penstock.nn.device.gather import Own, Scale, gather
from penstock.nn.device.lists import destination_lists
from penstock.sampling.block import Block
from penstock.sampling.device.block import DeviceBlock
from penstock.traced import array_of


def sum_lists(
    block: Block,
    x: Tensor,
    dtype: torch.dtype,
    read: Tensor | None = None,
    write: Tensor | None = None,
    own: Tensor | None = None,
) -> Tensor:
    """[num_dst, width] of type `dtype`: write[i] * sum of read[j] * x[j] over the list of i, + own[i].

    Scales that are not given are ones. Rows behind the last of `own` have no such term. On a device x and `own` are of
    any real type, on the host of type `dtype`.
    """
    if isinstance(block, DeviceBlock):
        reads, writes = (None if each is None else Scale(each) for each in (read, write))
        itself = None if own is None else Own(own)
        return gather(destination_lists(block), x, None, reads, writes, itself, out_dtype=dtype)
    before, after = (None if each is None else array_of(each) for each in (read, write))
    added = None if own is None else as_rows(own)
    return gather_rows(block.indptr, block.indices, None, before, after, None, added, x)
