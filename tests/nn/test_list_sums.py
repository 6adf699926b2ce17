"""Sums over lists of rows of a whole matrix, on the host and by a device's kernels."""

import numpy as np
import pytest
import torch
from random_blocks import random_block

from penstock.nn.table_aggregation import sum_lists
from penstock.sampling.device.block import device_block


def expected_sums(block, x, read, write, own):
    found = np.zeros((block.num_dst, x.shape[1]))
    for i in range(block.num_dst):
        for j in block.indices[block.indptr[i] : block.indptr[i + 1]]:
            found[i] += read[j] * x[j]
    found *= write[:, None]
    found[: len(own)] += own
    return found


@pytest.mark.parametrize("edges", [40, 400])
@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16, torch.float16])
def test_sums_of_rows_in_any_type(device, edges, kept):
    """400 edges on five rows have lists that are summed chunk by chunk."""
    rng = np.random.default_rng(3)
    block = random_block(30, 5, edges)
    x = torch.from_numpy(rng.normal(size=(30, 12)).astype(np.float32)).to(kept)
    own = torch.from_numpy(rng.normal(size=(3, 12)).astype(np.float32)).to(kept)
    read, write = (torch.from_numpy(rng.random(count).astype(np.float32)) for count in (30, 5))
    numbers = [each.float().numpy() for each in (x, read, write, own)]
    expected = expected_sums(block, numbers[0], *numbers[1:])
    given = [each.to(device) for each in (read, write, own)]
    found = sum_lists(device_block(block, device), x.to(device), torch.float32, *given)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=1e-4, atol=1e-4)
    if kept == torch.float32:
        np.testing.assert_allclose(sum_lists(block, x, kept, read, write, own).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_what_is_not_given_are_ones_and_nothing():
    block, x = random_block(30, 5, 40), torch.ones(30, 3)
    found = sum_lists(block, x, torch.float32)
    np.testing.assert_array_equal(found.numpy(), np.diff(block.indptr)[:, None] * np.ones((1, 3)))
