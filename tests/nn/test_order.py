"""Aggregate first or transform first: the cheaper by count, the same by result."""

import pytest
import torch
from random_blocks import random_block, rows, typed_block

from penstock.nn import GCNLayer, RGCNLayer, SAGELayer
from penstock.nn.order import aggregate_first


def test_wide_input_of_a_dense_block_is_transformed_first():
    # Cora: 1433 numbers a vertex to 16, every vertex computed.
    assert not aggregate_first(2708, 2708, 10556, 1433, 16, False)


def test_an_outermost_sampled_block_is_aggregated_first():
    # Five neighbours each: few rows come out, and the input needs no gradient.
    assert aggregate_first(400_000, 150_000, 700_000, 100, 256, False)
    assert aggregate_first(400_000, 150_000, 700_000, 256, 256, False)


def test_many_edges_to_a_narrow_output_are_transformed_first():
    assert not aggregate_first(20_000, 20_000, 2_000_000, 256, 47, True)


def test_a_gradient_of_the_input_tips_the_balance():
    sizes = (4000, 1000, 20_000, 128, 96)
    assert aggregate_first(*sizes, False)
    assert not aggregate_first(1000, 1000, 100_000, 128, 96, True)


def gradients(layer, block, x):
    layer.zero_grad()
    out = layer(block, x)
    total = out.square().sum() if isinstance(out, torch.Tensor) else sum(part.square().sum() for part in out.values())
    inputs = [x] if isinstance(x, torch.Tensor) else list(x.values())
    return out, torch.autograd.grad(total, [*inputs, *layer.parameters()])


@pytest.mark.parametrize("make", [SAGELayer, lambda i, o: SAGELayer(i, o, "sum"), GCNLayer])
@pytest.mark.parametrize("weights", [False, True])
def test_both_orders_give_the_same(make, weights):
    block, layer = random_block(weights=weights), make(6, 4).double()
    x = rows(9, 6, dtype=torch.float64)
    layer.order = "aggregate"
    one = gradients(layer, block, x)
    layer.order = "transform"
    torch.testing.assert_close(one, gradients(layer, block, x))


def test_both_orders_give_the_same_by_relation():
    block = typed_block()
    layer = RGCNLayer(6, 4, ["a", "b"], list(block.relations)).double()
    x = {"a": rows(9, 6, dtype=torch.float64), "b": rows(7, 6, dtype=torch.float64)}
    layer.order = "aggregate"
    one = gradients(layer, block, x)
    layer.order = "transform"
    torch.testing.assert_close(one, gradients(layer, block, x))
