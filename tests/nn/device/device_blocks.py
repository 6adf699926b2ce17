"""Blocks of a device for tests, with room to spare that holds nonsense, and comparison with float64 on the host."""

import copy

import numpy as np
import torch

from penstock.sampling import Block
from penstock.sampling.device.block import DeviceBlock, device_block

NONSENSE = 2**31 - 1


def padded(block, device, rows=3, edges=5, sources=4):
    """The block with room for more rows, edges and sources than it has; unused indices are no addresses."""
    spare = np.full(edges, NONSENSE, np.int32)
    spare[::2] = -NONSENSE
    widened = Block(
        np.pad(block.indptr, (0, rows), mode="edge"),
        np.concatenate([block.indices, spare]),
        block.num_src + sources,
        None if block.weights is None else np.pad(block.weights, (0, edges), constant_values=np.nan),
        None if block.totals is None else np.pad(block.totals, (0, sources)),
    )
    return device_block(widened, device)


def hub_block(rows=12, hub_edges=170, seed=0):
    """Row 2 has a long list, source 3 is in nearly all of them, the others are ordinary or empty."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 5, rows)
    counts[2], counts[5] = hub_edges, 65
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    indices = rng.integers(0, rows, indptr[-1]).astype(np.int32)
    indices[rng.random(len(indices)) < 0.6] = 3
    return Block(indptr, indices, rows, totals=(counts + 1).astype(np.float32))


def with_gradients(layer, block, x, weigh=None):
    """A layer's rows, and the gradients of x and of the parameters, of a sum with uneven weights."""
    x = x.detach().requires_grad_()
    out = layer(block, x)
    generator = torch.Generator().manual_seed(7)
    rows = weigh or len(out)
    weight = torch.randn(rows, out.shape[1], generator=generator, dtype=torch.float64).to(out)
    inputs = [x, *(layer.parameters() if isinstance(layer, torch.nn.Module) else ())]
    return out, torch.autograd.grad((out[:rows] * weight).sum(), inputs)


def assert_equal_to_host(layer, block, on_device: DeviceBlock, x, tolerance=1e-5):
    """Rows and gradients as in float64 on the host, up to `tolerance` of each tensor's largest number."""
    exact, here = layer, layer
    if isinstance(layer, torch.nn.Module):
        exact, here = copy.deepcopy(layer).double(), layer.to(on_device.device)
    out, grads = with_gradients(exact, block, x[: block.num_src].double())
    got, got_grads = with_gradients(here, on_device, x.to(on_device.device), len(out))
    assert_near(got[: len(out)], out, tolerance)
    for mine, right in zip(got_grads, grads, strict=True):
        assert_near(mine[: len(right)], right, tolerance)
    return got, got_grads


def assert_near(got, right, tolerance):
    """Up to `tolerance` of the largest number that is right; what cancels out was made of numbers about one."""
    assert got.shape == right.shape
    right = right.detach()
    scale = float(right.abs().max()) if right.numel() else 0.0
    torch.testing.assert_close(got.detach().cpu().double(), right, rtol=0, atol=tolerance * max(scale, 0.1))
