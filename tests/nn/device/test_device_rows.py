"""Features read where they lie: rows of a table are aggregated without a copy, to the same result."""

import copy

import pytest
import torch
from device_blocks import assert_near, padded
from random_blocks import random_block, rows

from penstock.nn import GCNLayer, GINLayer, GraphModel, SAGELayer, model_options
from penstock.nn.aggregation import aggregate_beside, aggregate_joined, check_rows
from penstock.nn.device.gather import TableRows
from penstock.sampling import Block
from penstock.sampling.device.block import device_block
from refusals import refused

pytestmark = pytest.mark.gpu


def table_rows(device, count=12, width=24, dtype=torch.float32, ids=torch.int64):
    """Rows of a table larger than the batch."""
    generator = torch.Generator().manual_seed(1)
    chosen = torch.randperm(50, generator=generator)[:count].to(ids)
    return TableRows(rows(50, width, grad=False).to(dtype).to(device), chosen.to(device))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("ids", [torch.int32, torch.int64])
def test_it_is_the_matrix(device, dtype, ids):
    given = table_rows(device, dtype=dtype, ids=ids)
    right = given.table[given.ids.long()]
    assert torch.equal(given.materialise(), right)
    assert torch.equal(given.materialise(torch.float32), right.float())
    assert given.shape == right.shape
    assert given.dtype == dtype
    assert not given.requires_grad
    assert torch.equal(given[:7].materialise(), right[:7])


@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_aggregated_where_they_lie_in_another_type(device, reduce, weights, dtype):
    block = random_block(12, 6, 20, weights)
    given = table_rows(device, dtype=dtype)
    right = aggregate_beside(block, given.materialise().cpu().double(), reduce)
    got = aggregate_joined(device_block(block, device), given, reduce, torch.float32)
    assert got.dtype == torch.float32
    assert_near(got[:, :-8], torch.cat(right, dim=1), 1e-5)


@pytest.mark.parametrize("order", ["aggregate", "transform"])
@pytest.mark.parametrize("reduce", ["mean", "max"])
def test_sage_takes_both(device, order, reduce):
    torch.manual_seed(0)
    block = padded(random_block(12, 6, 20), device)
    given, layer = table_rows(device, 16, dtype=torch.float16), SAGELayer(24, 5, reduce, order=order).to(device)
    torch.testing.assert_close(layer(block, given), layer(block, given.materialise(torch.float32)))


LAYERS = {
    "sage": lambda: SAGELayer(24, 5),
    "gcn": lambda: GCNLayer(24, 5),
    "gin": lambda: GINLayer(24, 5, train_eps=True),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_neighbours_without_rows_of_their_own(device, name, dtype):
    """Lists hold rows of the table: outputs and gradients are those of the gathered rows in float64 on the host."""
    torch.manual_seed(0)
    block, layer, given = random_block(12, 6, 30), LAYERS[name](), table_rows(device, dtype=dtype)
    totals = torch.zeros(50)
    totals[given.ids.cpu()] = torch.from_numpy(block.totals)
    lists = given.ids.cpu()[torch.from_numpy(block.indices).long()].to(torch.int32)
    direct = device_block(Block(block.indptr, lists.numpy(), 6, totals=block.totals[:6]), device)
    direct.derived["vertex_totals"] = totals.to(device)
    exact = copy.deepcopy(layer).double()
    right = exact(block, given.materialise().cpu().double())
    here = layer.to(device)
    got = here(direct, TableRows(given.table, given.ids[:6].to(torch.int32), direct=True))
    assert_near(got, right, 2e-5)
    weight = rows(*right.shape, 9, torch.float64, False)
    grads = torch.autograd.grad((right * weight).sum(), list(exact.parameters()))
    found = torch.autograd.grad((got * weight.to(got)).sum(), list(here.parameters()))
    for mine, correct in zip(found, grads, strict=True):
        assert_near(mine, correct, 2e-5)


@pytest.mark.covering(1)
@pytest.mark.parametrize("model", ["sage", "gcn", "gin", "gat", "mlp"])
@pytest.mark.parametrize("residual", [False, True])
def test_models_take_tables(device, model, residual):
    torch.manual_seed(0)
    outer, inner = random_block(12, 6, 20), random_block(6, 3, 9)
    blocks = [device_block(outer, device), device_block(inner, device)]
    given = table_rows(device, dtype=torch.float16)
    chosen = model_options(model=model, hidden=8, layers=2, heads=2, residual=residual, dropout=0.0)
    net = GraphModel(chosen, 24, 3).to(device)
    torch.testing.assert_close(net(blocks, given), net(blocks, given.materialise(torch.float32)))


def test_blocks_of_the_host_do_not_reach_into_tables(device):
    with refused("mismatched-inputs"):
        check_rows(random_block(12, 6, 20), table_rows(device))
