"""Dropout on a device: the host's masks bit for bit, whether the key is a number or lies on the device."""

import numpy as np
import pytest
import torch
from device_blocks import padded
from random_blocks import random_block, rows

from penstock.graph.hashing import mix
from penstock.nn.device.drop import DropKey, Dropping, drop_rows
from penstock.nn.drop import drop, drop_edges, dropping, rectify_later, relu_drop
from penstock.nn.kernels import drop_rows as drop_on_host
from penstock.sampling.device.block import device_block
from refusals import refused

pytestmark = pytest.mark.gpu

KEY = 0xF123456789ABCDEF


def on(device, key):
    """The key's bits on a device."""
    return torch.from_numpy(np.array([key], np.uint64).view(np.int64)).to(device)


@pytest.mark.covering(1)
@pytest.mark.parametrize("width", [1, 3, 16, 33, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_host_s_bits(device, width, dtype):
    x = rows(37, width, dtype=dtype, grad=False)
    with dropping(KEY):
        right = drop(x, 0.4), relu_drop(x * 1, 0.3)
    with dropping(on(device, KEY)):
        got = drop(x.to(device), 0.4), relu_drop(x.to(device, copy=True), 0.3)
    assert torch.equal(got[0].cpu(), right[0])
    assert torch.equal(got[1].cpu(), right[1])


@pytest.mark.parametrize("width", [1, 3, 16, 33, 100])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_host_s_bits_by_name(device, width, dtype):
    """Rows in more than one program's words, names as large as their type takes, more of them than rows."""
    names = np.random.default_rng(width).integers(0, np.iinfo(dtype).max, 150, dtype, endpoint=True)
    names[:3] = 0, np.iinfo(dtype).max, names[3]
    x, there = rows(140, width, grad=False), torch.from_numpy(names).to(device)
    with dropping(KEY, names):
        right = drop(x, 0.4), relu_drop(x * 1, 0.3), relu_drop(x * 1, 0.2)
    with dropping(on(device, KEY), there):
        moved = x.to(device)
        got = drop(moved, 0.4), relu_drop(moved * 1, 0.3), rectify_later(moved * 1, 0.2).rows
    for mine, host_s in zip(got, right, strict=True):
        assert torch.equal(mine.cpu(), host_s)
    assert torch.equal(right[0][2] == 0, right[0][3] == 0)


def test_names_of_the_host_follow_the_rows(device):
    names, x = np.array([9, 2**40, 4], np.int64), rows(3, 20, grad=False)
    with dropping(KEY, names):
        right = drop(x, 0.5), drop(x, 0.5)
    with dropping(KEY, names):
        got = drop(x.to(device), 0.5), drop(x.to(device), 0.5)
    for mine, host_s in zip(got, right, strict=True):
        assert torch.equal(mine.cpu(), host_s)


@pytest.mark.parametrize("edges", [0, 20, 700])
@pytest.mark.parametrize("room", [False, True])
def test_edges_have_the_host_s_names(device, edges, room):
    block, names = random_block(12, 6, edges), np.arange(16, dtype=np.int64) * 2**33 + 5
    ours = padded(block, device) if room else device_block(block, device)
    ones = torch.ones(ours.num_edges, 5, device=device)
    with dropping(KEY, names):
        right = drop_edges(block, torch.ones(edges, 5), 0.4)
    with dropping(on(device, KEY), torch.from_numpy(names).to(device)):
        got = drop_edges(ours, ones, 0.4)
    assert torch.equal(got[:edges].cpu(), right)


@pytest.mark.parametrize("key", [0, 7, 2**31, 2**63, 2**64 - 1])
def test_any_number_is_a_key(device, key):
    x, right = rows(9, 7, grad=False), np.empty((9, 7), np.float32)
    drop_on_host(x.numpy(), np.empty(0, np.int64), np.uint64(key), 30000, np.float32(2), False, right, 0, 9)
    got = torch.empty(9, 7, device=device)
    drop_rows(x.to(device), Dropping(DropKey(key), 30000, 2.0), False, got)
    np.testing.assert_array_equal(got.cpu(), right)


def test_calls_are_counted_and_streams_nest():
    ones = torch.ones(6, 50)
    with dropping(5) as stream:
        first = drop(ones, 0.5)
        with dropping(5):
            assert torch.equal(drop(ones, 0.5), first)
        second = drop(ones, 0.5)
        assert stream.calls == 2
    assert not torch.equal(first, second)
    right = np.empty((6, 50), np.float32)
    key = np.uint64(mix(np.uint64((5 + 2 * 0x9E3779B97F4A7C15) % 2**64)))
    drop_on_host(ones.numpy(), np.empty(0, np.int64), key, 1 << 15, np.float32(2), False, right, 0, 6)
    np.testing.assert_array_equal(second, right)


def test_nothing_dropped_is_no_call():
    with dropping(5) as stream:
        drop(torch.ones(3, 2), 0.0)
        relu_drop(torch.ones(3, 2), 0.0)
    assert stream.calls == 0


@pytest.mark.parametrize("width", [16, 33])
def test_gradients(device, width):
    key, x = on(device, KEY), rows(9, width, grad=False).to(device).requires_grad_()
    with dropping(key):
        out = drop(x, 0.4), relu_drop(x * 1, 0.4)
    for y, base in zip(out, (x, x.relu()), strict=True):
        (grad,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        torch.testing.assert_close(y, grad * base)
        assert (grad == 0).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_types_have_the_same_mask(device, dtype):
    with dropping(KEY):
        right = drop(torch.ones(20, 33), 0.4) > 0
    with dropping(on(device, KEY)):
        got = drop(torch.ones(20, 33, dtype=dtype, device=device), 0.4)
    assert got.dtype == dtype
    assert torch.equal((got > 0).cpu(), right)


def test_the_key_is_read_when_the_kernel_runs(cuda_device):
    key, x = on(cuda_device, 1), torch.ones(40, 33, device=cuda_device)
    with dropping(key):
        drop(x, 0.5)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), dropping(key):
        out = drop(x, 0.5)
    for number in (1, KEY):
        key.copy_(on(cuda_device, number))
        graph.replay()
        with dropping(number):
            assert torch.equal(out.cpu(), drop(torch.ones(40, 33), 0.5))


def test_what_is_no_matrix_is_refused(device):
    with dropping(on(device, 1)), refused("shape-mismatch"):
        drop(torch.ones(3, device=device), 0.5)
