"""Attention on a device: equal to float64 on the host, forward and every gradient."""

import numpy as np
import pytest
import torch
from device_blocks import assert_equal_to_host, assert_near, hub_block, padded
from random_blocks import random_block, rows

from penstock.nn import GATLayer, attend, attend_jointly
from penstock.nn.device import attention
from penstock.sampling import Block
from penstock.sampling.device.block import device_block

pytestmark = pytest.mark.gpu


@pytest.fixture(params=[1, 1000])
def _programs(request, monkeypatch):
    """Blocks as small as these are read by programs of several rows, whose last has fewer, or of one row each."""
    monkeypatch.setattr(attention, "_TOGETHER", 2)
    monkeypatch.setattr(attention, "_TOGETHER_BACK", 4)
    monkeypatch.setattr(attention, "_PROGRAMS", request.param)


def differentiated(function, block, inputs, kept, count):
    """The rows, and the gradients of the inputs."""
    given = [x.detach().requires_grad_() for x in inputs]
    out = function(block, *given, kept=kept)
    weight = torch.randn(out[:count].shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(out)
    return out[:count], torch.autograd.grad((out[:count] * weight).sum(), given)


def inputs_of(function, num_src, num_dst, heads, size):
    """[sources], [destinations] and what else the function takes."""
    if function is attend:
        return rows(num_src, heads, 1), rows(num_dst, heads, 2), rows(num_src, heads * size, 3)
    return rows(num_src, heads * size, 1), rows(num_dst, heads * size, 2), rows(heads, size, 3)


def compare(function, block, made, heads, size, device, dropped=False, tolerance=1e-5):
    """Both paths, the device's block perhaps with more room."""
    inputs = inputs_of(function, made.num_src, made.num_dst, heads, size)
    kept = (torch.rand(made.num_edges, heads, generator=torch.Generator().manual_seed(0)) < 0.6) / 0.6
    first = block.num_src, block.num_dst, len(inputs[2]) if function is attend_jointly else block.num_src
    exact = [x[:count].double() for x, count in zip(inputs, first, strict=True)]
    right = differentiated(function, block, exact, kept[: block.num_edges].double() if dropped else None, block.num_dst)
    moved = [x.to(device) for x in inputs]
    got = differentiated(function, made, moved, kept.to(device) if dropped else None, block.num_dst)
    assert_near(got[0], right[0], tolerance)
    for mine, correct in zip(got[1], right[1], strict=True):
        assert_near(mine[: len(correct)], correct, tolerance)
    return got


@pytest.mark.covering(1)
@pytest.mark.parametrize("function", [attend, attend_jointly])
@pytest.mark.parametrize(
    ("heads", "size", "edges", "weights"),
    [
        (1, 3, 30, False),
        (3, 5, 60, True),
        (2, 16, 0, False),
        (8, 4, 20, True),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in ((1, 3, 30, True), (3, 5, 60, False), (2, 16, 0, True), (8, 4, 20, False))
        ),
    ],
)
def test_equal_to_the_host(device, function, weights, heads, size, edges):
    block = random_block(12, 6, edges, weights)
    compare(function, block, device_block(block, device), heads, size, device, dropped=edges == 60)


@pytest.mark.parametrize("function", [attend, attend_jointly])
@pytest.mark.parametrize(("heads", "size"), [(4, 64), (3, 48), (1, 130)])
@pytest.mark.parametrize("known", [False, True])
def test_rows_of_two_parts(device, function, heads, size, known):
    """Rows of more than 128 numbers, whose heads are read in two parts; and lists that fit one tile, known to be."""
    block = random_block(9, 6, 14, weights=True)
    made = device_block(block, device)
    if known:
        made.derived["longest"] = int(np.diff(block.indptr).max())
    compare(function, block, made, heads, size, device, tolerance=2e-5)


@pytest.mark.usefixtures("_programs")
@pytest.mark.parametrize("function", [attend, attend_jointly])
def test_hubs(device, function):
    block = hub_block()
    compare(function, block, device_block(block, device), 2, 8, device, tolerance=2e-5)


@pytest.mark.usefixtures("_programs")
@pytest.mark.parametrize("function", [attend, attend_jointly])
def test_room_to_spare(device, function):
    block = random_block(12, 6, 40, weights=True)
    compare(function, block, padded(block, device), 2, 4, device, dropped=True)


@pytest.mark.parametrize("function", [attend, attend_jointly])
def test_the_same_bits_twice(device, function):
    block = hub_block(hub_edges=60)
    one, two = (compare(function, block, device_block(block, device), 2, 4, device) for _ in range(2))
    assert torch.equal(one[0], two[0])
    assert all(torch.equal(*pair) for pair in zip(one[1], two[1], strict=True))


@pytest.mark.parametrize("function", [attend, attend_jointly])
def test_narrow_types(device, function):
    block = random_block(12, 6, 40)
    inputs = [x.detach().bfloat16() for x in inputs_of(function, 12, 6, 2, 8)]
    right = function(block, *(x.double() for x in inputs))
    got = function(device_block(block, device), *(x.to(device) for x in inputs))
    assert got.dtype == torch.bfloat16
    # Computed in float32, and rounded once (the interpreter cuts off instead).
    bound = 2.0**-7 * right.abs() + 1e-5
    assert ((got.cpu().double() - right).abs() <= bound).all()


@pytest.mark.usefixtures("_programs")
@pytest.mark.parametrize("v2", [False, True])
def test_self_loops_need_no_lists_of_their_own(device, v2):
    """Also where lists are long, and name their own vertex already."""
    torch.manual_seed(0)
    block, layer = hub_block(hub_edges=70), GATLayer(6, 4, 2, v2=v2)
    assert_equal_to_host(layer, block, device_block(block, device), rows(12, 6), 3e-5)


@pytest.mark.usefixtures("_programs")
@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_lists_of_one_tile(device, v2, known):
    """Where a sampler's bound says that a tile has every list whole, with the row itself; one list is empty."""
    rng = np.random.default_rng(0)
    indptr = np.array([0, 3, 6, 9, 12, 12, 15, 18])
    block = Block(indptr, rng.integers(0, 9, indptr[-1]).astype(np.int32), 9, totals=np.full(9, 3, np.float32))
    made = device_block(block, device)
    if known:
        made.derived["longest"] = 3
    torch.manual_seed(0)
    assert_equal_to_host(GATLayer(6, 64, 4, v2=v2), block, made, rows(9, 6), 3e-5)
