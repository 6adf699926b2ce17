"""Lists turned round and with self loops on a device: as on the host, with room to spare or without."""

import numpy as np
import pytest
import torch
from device_blocks import hub_block, padded
from random_blocks import random_block

from penstock.nn.aggregation import transposed
from penstock.nn.derived import with_self_loops
from penstock.nn.device.gather import source_lists
from penstock.sampling.device.block import device_block

pytestmark = pytest.mark.gpu

BLOCKS = [random_block(20, 11, edges, weights=True, seed=seed) for edges, seed in ((0, 0), (1, 1), (60, 2))]
BLOCKS.append(hub_block())


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("room", [False, True])
def test_sources_lists(device, block, room):
    made = padded(block, device) if room else device_block(block, device)
    sources = block.num_src + 4 * room
    found, right = source_lists(made, sources), transposed(block, sources)
    used = block.num_edges
    np.testing.assert_array_equal(found.indptr.cpu(), right.indptr)
    np.testing.assert_array_equal(found.indices[:used].cpu(), right.indices)
    np.testing.assert_array_equal(found.edges[:used].cpu(), right.edges)
    assert found.indptr.dtype == found.indices.dtype == found.edges.dtype == torch.int32
    assert source_lists(made, sources) is found
    assert len(source_lists(made, sources + 2).indptr) == sources + 3


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("room", [False, True])
def test_self_loops(device, block, room):
    made = padded(block, device) if room else device_block(block, device)
    looped, right = with_self_loops(made), with_self_loops(block)
    rows, used = block.num_dst, int(right.indptr[-1])
    np.testing.assert_array_equal(looped.indptr[: rows + 1].cpu(), right.indptr)
    np.testing.assert_array_equal(looped.indices[:used].cpu(), right.indices)
    if block.weights is not None:
        np.testing.assert_array_equal(looped.weights[:used].cpu(), right.weights)
    # Rows behind the batch's own read themselves.
    spare = np.arange(rows, made.num_dst)
    np.testing.assert_array_equal(looped.indptr[rows + 1 :].cpu(), used + 1 + np.arange(len(spare)))
    np.testing.assert_array_equal(looped.indices[used : used + len(spare)].cpu(), spare)
    assert looped.num_edges == made.num_edges + made.num_dst
    assert with_self_loops(made) is looped
