"""Every layer on a device's blocks: rows and all gradients as in float64 on the host."""

import copy

import numpy as np
import pytest
import torch
from device_blocks import assert_equal_to_host, assert_near, padded, with_gradients
from random_blocks import random_block, rows, typed_block

from penstock.nn import (
    DenseLayer,
    GATLayer,
    GCNLayer,
    GINELayer,
    GINLayer,
    HGTLayer,
    RGCNLayer,
    SAGELayer,
    TransformerLayer,
    TypedDenseLayer,
    TypedGATLayer,
)
from penstock.nn.drop import dropping
from penstock.nn.operator_costs import OrderCosts
from penstock.nn.order import aggregates_first
from penstock.sampling import Block
from penstock.sampling.device.block import device_block, on_device

pytestmark = pytest.mark.gpu

LAYERS = {
    "sage": lambda: SAGELayer(6, 5),
    "sage sum": lambda: SAGELayer(6, 5, "sum"),
    "sage max": lambda: SAGELayer(6, 5, "max"),
    "sage transforming first": lambda: SAGELayer(6, 5, order="transform"),
    "gcn": lambda: GCNLayer(6, 5),
    "gcn transforming first": lambda: GCNLayer(6, 5, order="transform"),
    "gin": lambda: GINLayer(6, 5, train_eps=True),
    "gat": lambda: GATLayer(6, 5, 3),
    "gat averaged": lambda: GATLayer(6, 5, 2, concat=False, self_loop=False),
    "gatv2": lambda: GATLayer(6, 4, 2, v2=True),
    "dense": lambda: DenseLayer(6, 5),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("weights", [False, True])
def test_equal_to_the_host(device, name, weights):
    torch.manual_seed(0)
    block, layer = random_block(12, 6, 20, weights), LAYERS[name]()
    assert_equal_to_host(layer, block, device_block(block, device), rows(12, 6), 2e-5)


CARRIED = {
    "gatv2": lambda: GATLayer(6, 4, 2, v2=True, edge_width=3),
    "gine": lambda: GINELayer(6, 5, 3),
    "transformer": lambda: TransformerLayer(6, 4, 2, edge_width=3),
}


@pytest.mark.parametrize("name", CARRIED)
@pytest.mark.parametrize("weights", [False, True])
def test_edges_that_carry_something(device, name, weights):
    """Blocks that the host has drawn: they have no room to spare."""
    torch.manual_seed(0)
    block, layer = random_block(12, 6, 20, weights), CARRIED[name]()
    block.edge_attr = torch.randn(20, 3)
    assert_equal_to_host(layer, block, device_block(block, device), rows(12, 6), 2e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_room_to_spare(device, name):
    torch.manual_seed(0)
    block, layer = random_block(12, 6, 20), LAYERS[name]()
    assert_equal_to_host(layer, block, padded(block, device), rows(16, 6), 2e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_autocast_computes_in_a_narrow_type(device, name):
    torch.manual_seed(0)
    block, layer, x = random_block(12, 6, 20), LAYERS[name](), rows(12, 6, grad=False)
    right = copy.deepcopy(layer).double()(block, x.double())
    layer = layer.to(device)
    with torch.autocast(device.type, torch.bfloat16):
        got, grads = with_gradients(layer, device_block(block, device), x.to(device))
    # A handful of roundings to eight bits.
    assert_near(got, right, 0.06)
    assert all(torch.isfinite(grad).all() for grad in grads)


@pytest.mark.parametrize("v2", [False, True])
def test_attention_drops_what_the_host_drops(device, v2):
    torch.manual_seed(0)
    block, layer = random_block(12, 6, 20), GATLayer(6, 5, 3, v2=v2, dropout=0.5)
    with dropping(11):
        right = copy.deepcopy(layer).double()(block, rows(12, 6).double())
    with dropping(torch.tensor([11], device=device)):
        got = layer.to(device)(device_block(block, device), rows(12, 6).to(device))
    assert_near(got, right, 1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_a_step_can_be_captured(cuda_device, name):
    """Captured with one batch, replayed with another in the same room."""
    torch.manual_seed(0)
    layer, x = LAYERS[name]().to(cuda_device), rows(16, 6).detach().to(cuda_device).requires_grad_()
    one, two = (padded(random_block(12, 6, 20, seed=seed), cuda_device) for seed in (1, 2))

    def step(block):
        block.derived.clear()
        out = layer(block, x)[:6]
        gradients = torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])
        return [out.detach(), *gradients]

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step(one)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(one)
    for name_of in ("indptr", "indices", "totals"):
        getattr(one, name_of).copy_(getattr(two, name_of))
    with torch.no_grad():
        x.copy_(rows(16, 6, seed=5))
    graph.replay()
    # Products may be summed in another order while a graph is captured.
    torch.testing.assert_close(captured, step(two), rtol=1e-5, atol=1e-4)


def typed_layers(block):
    kinds = list(block.relations)
    return [
        RGCNLayer(6, 5, ["a", "b"], kinds),
        RGCNLayer(6, 5, ["a", "b"], kinds, bases=2, aggregate="max"),
        RGCNLayer(6, 4, ["a", "b"], kinds, blocks=2),
        TypedGATLayer(6, 4, ["a", "b"], kinds, heads=2),
        HGTLayer(6, 6, ["a", "b"], kinds, heads=2),
        TypedDenseLayer(6, 5, ["a", "b"]),
    ]


@pytest.mark.covering(1)
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("weights", [False, True])
def test_typed_layers(device, number, weights):
    torch.manual_seed(0)
    block = typed_block(weights=weights)
    layer, x = typed_layers(block)[number], {"a": rows(9, 6, 1), "b": rows(7, 6, 2)}

    def computed(layer, block, x):
        out = layer(block, x)
        inputs = [*x.values(), *layer.parameters()]
        total = sum((part * part).sum() for part in out.values())
        return out, torch.autograd.grad(total, inputs, allow_unused=True)

    exact = {name: part.detach().double().requires_grad_() for name, part in x.items()}
    right, right_grads = computed(copy.deepcopy(layer).double(), block, exact)
    moved = {name: part.detach().to(device).requires_grad_() for name, part in x.items()}
    got, got_grads = computed(layer.to(device), on_device(block, device), moved)
    for name, part in right.items():
        assert_near(got[name], part, 1e-5)
    for mine, correct in zip(got_grads, right_grads, strict=True):
        if correct is None:
            assert mine is None or not mine.any()
        elif mine is None:
            assert not correct.any()
        else:
            assert_near(mine, correct, 2e-5)


def test_the_block_says_whose_costs_decide(device):
    """The same sizes in both orders, by the costs of the host and of the device."""
    block = Block(np.arange(0, 1001 * 5, 5), np.zeros(5000, np.int32), 1200)
    x, weight = torch.empty(1200, 64, device="meta", requires_grad=True), torch.empty(56, 64, device="meta")
    costs = {"cpu": _costs(flop=1.0, number=1e-9), "cuda": _costs(flop=1e-9, number=1.0)}
    assert aggregates_first(block, x, weight, "auto", costs)
    assert not aggregates_first(device_block(block, device), x, weight, "auto", costs)


def _costs(flop: float, number: float) -> OrderCosts:
    rates = {key: {"flops": flop} for key in ("dense", "dense_weight_gradient", "dense_input_gradient")}
    rates |= {key: {"numbers": number, "written": number} for key in ("aggregate", "aggregate_backward")}
    return OrderCosts(measured_on="made", processor=(1e12, 1e12, 1), rates=rates)
