"""Aggregation on a device: equal to float64 on the host, with any width, padding, hub and number type."""

import numpy as np
import pytest
import torch
from device_blocks import assert_equal_to_host, assert_near, hub_block, padded, with_gradients
from random_blocks import random_block, rows

from penstock.nn import aggregate
from penstock.nn.aggregation import aggregate_beside, aggregate_joined, gather, normalised_sum
from penstock.sampling.device.block import DeviceBlock, device_block
from refusals import refused

pytestmark = pytest.mark.gpu

REDUCES = ["mean", "sum", "max"]


def by(reduce):
    return lambda block, x: aggregate(block, x, reduce)


@pytest.mark.covering(2)
@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize(("width", "edges"), [(3, 14), (16, 60), (33, 0), (300, 8)])
def test_equal_to_the_host(device, reduce, weights, width, edges):
    block = random_block(20, 11, edges, weights)
    assert_equal_to_host(by(reduce), block, device_block(block, device), rows(20, width))


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("weights", [False, True])
def test_padding_changes_no_bit(device, reduce, weights):
    block = random_block(20, 11, 40, weights)
    x = rows(24, 16, grad=False).to(device)
    out, (grad,) = with_gradients(by(reduce), device_block(block, device), x[:20])
    wide, (wide_grad,) = with_gradients(by(reduce), padded(block, device), x, 11)
    assert torch.equal(wide[:11], out)
    assert not wide[11:].any()
    assert torch.equal(wide_grad[:20], grad)
    assert not wide_grad[20:].any()


@pytest.mark.parametrize("reduce", REDUCES)
def test_hubs_are_walked_in_chunks(device, reduce):
    block = hub_block()
    made = device_block(block, device)
    assert_equal_to_host(by(reduce), block, made, rows(12, 16))
    assert (made.derived["chunks"] >= 0).any()
    assert (made.derived["source_chunks"] >= 0).any()


def test_a_known_bound_saves_the_chunks(device):
    block = random_block(20, 11, 100)
    made = device_block(block, device)
    made.derived["longest"] = int(np.diff(block.indptr).max())
    assert made.derived["longest"] <= 64
    assert_equal_to_host(by("mean"), block, made, rows(20, 16))
    assert "chunks" not in made.derived


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize(("dtype", "unit"), [(torch.float16, 2.0**-11), (torch.bfloat16, 2.0**-7)])
def test_narrow_types_are_summed_in_float32(device, reduce, dtype, unit):
    block = hub_block()
    x = rows(12, 24, grad=False).to(dtype)
    got = aggregate(device_block(block, device), x.to(device), reduce)
    right = aggregate(block, x.double(), reduce)
    assert got.dtype == dtype
    # One rounding at the end (the interpreter cuts bfloat16 off instead), and float32's on the way.
    bound = unit * right.abs() + 1e-5 * right.abs().max()
    assert ((got.cpu().double() - right).abs() <= bound).all()


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_own_rows_share_the_way_back(device, reduce):
    def both(block, x):
        return torch.cat(aggregate_beside(block, x, reduce), dim=1)

    block = random_block(20, 11, 40)
    assert_equal_to_host(both, block, device_block(block, device), rows(20, 16))


@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("weights", [False, True])
def test_joined_rows(device, reduce, weights):
    def joined(block, x):
        if isinstance(block, DeviceBlock):
            return aggregate_joined(block, x, reduce)
        neighbours, own = aggregate_beside(block, x, reduce)
        behind = torch.eye(1, 8, dtype=x.dtype).repeat(len(own), 1)
        return torch.cat([neighbours, own, behind], dim=1)

    block = random_block(20, 11, 40, weights)
    assert_equal_to_host(joined, block, device_block(block, device), rows(20, 16))
    assert_equal_to_host(joined, block, padded(block, device), rows(24, 33))


def test_scales_of_both_ends_and_the_own_row(device):
    block = random_block(20, 11, 40, weights=True)
    rng = np.random.default_rng(0)
    scales = rng.random(20) + 0.5, rng.random(11) + 0.5, rng.random(11)
    right = gather(block, rows(20, 9).double(), *scales)
    moved = [torch.from_numpy(scale).float().to(device) for scale in scales]
    assert_near(gather(device_block(block, device), rows(20, 9).to(device), *moved), right, 1e-5)


@pytest.mark.parametrize("weights", [False, True])
def test_normalised_sums(device, weights):
    block = random_block(20, 11, 40, weights)
    assert_equal_to_host(normalised_sum, block, device_block(block, device), rows(20, 9))


def test_rows_of_any_stride(device):
    block, x = random_block(20, 11, 40), rows(20, 32, grad=False).to(device)
    made = device_block(block, device)
    assert torch.equal(aggregate(made, x[:, 4:20]), aggregate(made, x[:, 4:20].contiguous()))
    assert torch.equal(aggregate(made, x.t().contiguous().t()), aggregate(made, x))


@pytest.mark.parametrize("reduce", REDUCES)
def test_the_same_bits_twice(device, reduce):
    block, x = hub_block(), rows(12, 33).to(device)
    one = with_gradients(by(reduce), device_block(block, device), x)
    two = with_gradients(by(reduce), device_block(block, device), x)
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1][0], two[1][0])


@pytest.mark.parametrize(("num_src", "num_dst", "width"), [(4, 0, 3), (4, 2, 0), (1, 1, 5)])
def test_blocks_with_nothing_in_them(device, num_src, num_dst, width):
    block = random_block(num_src, num_dst, 0)
    made, x = device_block(block, device), rows(num_src, width).to(device)
    for reduce in REDUCES:
        out, (grad,) = with_gradients(by(reduce), made, x)
        assert out.shape == (num_dst, width)
        assert not out.any()
        assert grad.shape == x.shape
        assert not grad.any()


def test_what_cannot_be_aggregated_is_refused(device):
    made = device_block(random_block(weights=True, totals=False), device)
    with refused("shape-mismatch 5"):
        aggregate(made, rows(9, 3).to(device), "mean")
    with refused("shape-mismatch 9"):
        aggregate(made, rows(8, 3).to(device), "sum")
    with refused("unknown-name median"):
        aggregate(made, rows(9, 3).to(device), "median")
    with refused("wrong-type torch.int32"):
        aggregate(made, torch.ones(9, 3, dtype=torch.int32, device=device), "sum")
    with refused("mismatched-inputs"):
        aggregate(made, torch.empty(9, 3, device="meta"), "sum")


def test_rows_on_the_device_need_their_block_there(cuda_device):
    with refused("mismatched-inputs"):
        aggregate(random_block(), rows(9, 3).to(cuda_device))
