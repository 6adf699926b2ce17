"""Aggregate first or transform first: the faster one as predicted by given costs, the same by result."""

import pytest
import torch
from random_blocks import random_block, rows, typed_block

from penstock.nn import GCN, GCNLayer, GINLayer, RGCNLayer, SAGELayer
from penstock.nn.operator_costs import LayerSizes, OrderCosts, order_costs_of, shipped_order_costs
from penstock.nn.order import aggregates_first
from penstock.sampling import Block
from refusals import refused


def costs(flop: float, number: float) -> OrderCosts:
    """What a product and a number read cost; caches hold everything."""
    products = {"flops": flop}
    lists = {"written": number, "numbers": number}
    rates = {
        **dict.fromkeys(("dense", "dense_weight_gradient", "dense_input_gradient"), products),
        **dict.fromkeys(("aggregate", "aggregate_backward"), lists),
    }
    return OrderCosts(measured_on="a made machine", processor=(1e12, 1e12, 1), rates=rates)


BALANCED = costs(1.0, 40.0)
DEAR_PRODUCTS, DEAR_READING = costs(1.0, 1e-9), costs(1e-9, 1.0)


def test_wide_input_of_a_dense_block_is_transformed_first():
    # Cora: 1433 numbers a vertex to 16, every vertex computed.
    assert not BALANCED.aggregates_first(LayerSizes(2708, 2708, 10556, 1433, 16, False))


def test_an_outermost_sampled_block_is_aggregated_first():
    # Five neighbours each: few rows come out, and the input needs no gradient.
    assert BALANCED.aggregates_first(LayerSizes(400_000, 150_000, 700_000, 100, 256, False))
    assert BALANCED.aggregates_first(LayerSizes(400_000, 150_000, 700_000, 256, 256, False))


def test_many_edges_to_a_narrow_output_are_transformed_first():
    assert not BALANCED.aggregates_first(LayerSizes(20_000, 20_000, 2_000_000, 256, 47, True))


def test_seconds_are_those_of_the_operators():
    """Forward and both gradients of the product, and of the sum over lists where a gradient goes through it."""
    sizes = LayerSizes(src=10, dst=4, edges=20, width_in=8, width_out=16, input_gradient=False)
    product, forward, backward = 2 * 8 * 16, 20 + 4, 20 + 10
    assert costs(1.0, 0.0).aggregate_seconds(sizes) == 2 * product * 4
    assert costs(0.0, 1.0).aggregate_seconds(sizes) == forward * 8
    assert costs(1.0, 0.0).transform_seconds(sizes) == 2 * product * 10
    assert costs(0.0, 1.0).transform_seconds(sizes) == (forward + backward) * 16
    with_gradient = sizes._replace(input_gradient=True)
    assert costs(1.0, 1.0).aggregate_seconds(with_gradient) == 3 * product * 4 + (forward + backward) * 8
    without = sizes._replace(training=False)
    assert costs(1.0, 1.0).transform_seconds(without) == product * 10 + forward * 16


def test_the_costs_decide_and_not_the_machine():
    block, x, weight = random_block(), rows(9, 6), torch.ones(6, 6)
    assert block.num_dst < block.num_src
    assert aggregates_first(block, x, weight, "auto", {"cpu": DEAR_PRODUCTS})
    dense = Block(block.indptr, block.indices, block.num_src)
    assert aggregates_first(dense, x, torch.ones(1, 6), "auto", {"cpu": DEAR_READING}) is False
    for order in ("aggregate", "transform"):
        assert aggregates_first(block, x, weight, order, {"cpu": DEAR_PRODUCTS}) == (order == "aggregate")


def test_inference_counts_no_gradients():
    """Many edges and a product that hardly narrows: the way back over the edges would tip the balance."""
    sizes = LayerSizes(1000, 1000, 20_000, 64, 60, True)
    made = costs(1.0, 5.0)
    forward = sizes._replace(input_gradient=False, training=False)
    assert not made.aggregates_first(sizes)
    assert not made.aggregates_first(forward)
    narrow = LayerSizes(1200, 400, 3000, 64, 60, False)
    assert made.aggregate_seconds(narrow._replace(training=False)) < made.aggregate_seconds(narrow)


def test_costs_come_from_a_profile_as_it_is_written():
    fits = [
        {"name": "dense", "device": "cpu", "rates": {"flops": 2.0}},
        {"name": "sample", "device": "cpu", "rates": {"rows": 1.0}},
        {"name": "dense", "device": "cuda", "rates": {"flops": 1.0}},
    ]
    machine = {"processor": "P", "gpu": "G", "processors": {"cpu": (1.0, 2.0, 2), "cuda": (3.0, 4.0, 1)}}
    found = order_costs_of({"machine": machine, "fits": fits})
    assert found["cpu"].rates == {"dense": {"flops": 2.0}}
    assert (found["cuda"].measured_on, found["cuda"].processor) == ("G", (3.0, 4.0, 1))


def test_both_devices_have_costs_that_come_with_penstock():
    shipped = shipped_order_costs()
    assert set(shipped) == {"cpu", "cuda"}
    for each in shipped.values():
        assert each.measured_on
        assert {"aggregate", "aggregate_backward", "dense", "dense_weight_gradient"} <= set(each.rates)


def gradients(layer, block, x):
    layer.zero_grad()
    out = layer(block, x)
    total = out.square().sum() if isinstance(out, torch.Tensor) else sum(part.square().sum() for part in out.values())
    inputs = [x] if isinstance(x, torch.Tensor) else list(x.values())
    return out, torch.autograd.grad(total, [*inputs, *layer.parameters()])


@pytest.mark.parametrize(
    "make",
    [SAGELayer, lambda i, o: SAGELayer(i, o, "sum"), GCNLayer, lambda i, o: GINLayer(i, o, eps=0.3, train_eps=True)],
)
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


def test_a_perceptron_that_begins_otherwise_is_left_whole():
    block, x = random_block(), rows(9, 6)
    layer = GINLayer(6, 4, mlp=torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(6, 4)), order="transform")
    same = GINLayer(6, 4, mlp=layer.mlp, order="aggregate")
    assert torch.equal(layer(block, x), same(block, x))


def test_layers_have_orders_of_their_own():
    model = GCN(6, 3, hidden=8, layers=2, order=["transform", "aggregate"])
    assert [layer.order for layer in model.convolutions] == ["transform", "aggregate"]
    assert [layer.order for layer in GCN(6, 3, hidden=8, layers=2, order="transform").convolutions] == ["transform"] * 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"order": ["transform"]}, "invalid-value order 1 2"),
        ({"order": "backwards"}, "invalid-value order"),
    ],
)
def test_orders_that_do_not_fit_are_refused(fields, said):
    with refused(said):
        GCN(6, 3, hidden=8, layers=2, **fields)


def test_an_order_is_refused_where_there_is_none_to_choose():
    from penstock.nn import GAT

    with refused("invalid-value order gat"):
        GAT(6, 3, hidden=8, layers=2, order="transform")
