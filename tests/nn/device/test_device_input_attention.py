"""GAT's first layer on a device, which weighs features in their table: equal to float64 on the host."""

import copy

import numpy as np
import pytest
import torch
from device_blocks import NONSENSE, assert_near
from random_blocks import random_block

from penstock.nn import GATLayer
from penstock.nn.device.gather import TableRows
from penstock.sampling import Block
from penstock.sampling.device.block import device_block

pytestmark = pytest.mark.gpu


def differentiated(layer, block, x, count):
    """The first rows, rectified in place as models do, and the gradients of the parameters."""
    out = torch.relu_(layer(block, x))[:count]
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(out)
    return out, torch.autograd.grad((out * weight).sum(), list(layer.parameters()))


def drawn(block, ids, device, direct, room=3):
    """The block on a device with room for more rows, its lists perhaps of rows of the table, and a bound on them."""
    made = device_block(block, device)
    ends = torch.cat([made.lists, made.lists[-1:].expand(room)])
    indices = ids.to(device).int()[made.indices.long()] if direct else made.indices
    spare = torch.full((4,), NONSENSE, dtype=torch.int32, device=device)
    widened = type(made)(ends, torch.cat([indices, spare]), block.num_src + room, made.weights)
    widened.derived["longest"] = max(int(made.lists.diff().max()), 1)
    return widened


@pytest.mark.covering(1)
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    ("heads", "size", "width", "edges", "weights", "loops", "concat"),
    [
        (1, 12, 5, 30, False, True, True),
        (4, 8, 16, 20, True, True, True),
        (2, 24, 19, 0, False, True, False),
        (3, 8, 7, 25, False, False, True),
    ],
)
def test_equal_to_the_host(device, direct, heads, size, width, edges, weights, loops, concat):
    torch.manual_seed(1)
    block, table = random_block(12, 6, edges, weights), torch.randn(40, width)
    ids = torch.randperm(40)[:12]
    layer = GATLayer(width, size, heads, concat, self_loop=loops)
    torch.nn.init.normal_(layer.bias)
    right = differentiated(copy.deepcopy(layer).double(), block, table[ids].double(), 6)
    made = drawn(block, ids, device, direct)
    given = ids[:6] if direct else ids
    rows = TableRows(table.to(device), torch.cat([given, ids[:3]]).to(device), direct)
    assert layer._attends_there(made, rows)
    got = differentiated(layer.to(device), made, rows, 6)
    assert_near(got[0], right[0], 1e-5)
    for mine, correct in zip(got[1], right[1], strict=True):
        assert_near(mine, correct, 2e-5)
    again = differentiated(layer, drawn(block, ids, device, direct), rows, 6)
    assert all(torch.equal(*pair) for pair in zip(got[1], again[1], strict=True))


def test_a_list_that_names_its_own_vertex_reads_it_once(device):
    torch.manual_seed(2)
    block = Block(np.array([0, 3, 4]), np.array([0, 2, 3, 1], np.int32), 4)
    table, ids = torch.randn(9, 8), torch.tensor([7, 2, 5, 0])
    layer = GATLayer(8, 8, 2)
    right = differentiated(copy.deepcopy(layer).double(), block, table[ids].double(), 2)
    rows = TableRows(table.to(device), torch.cat([ids[:2], ids[:3]]).to(device), direct=True)
    got = differentiated(layer.to(device), drawn(block, ids, device, True), rows, 2)
    for mine, correct in zip([got[0], *got[1]], [right[0], *right[1]], strict=True):
        assert_near(mine, correct, 1e-5)
