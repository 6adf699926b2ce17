"""Blocks whose edges are masked: ones change nothing, zeros silence a message, gradients are those of the formula."""

import copy

import numpy as np
import pytest
import torch
from random_blocks import dense, random_block, rows, typed_block, whole_block

from penstock.nn import (
    GATLayer,
    GCNLayer,
    GINLayer,
    HGTLayer,
    RGCNLayer,
    SAGELayer,
    TransformerLayer,
    TypedGATLayer,
    adapt,
    aggregate,
)
from penstock.nn.masked import MaskedBlock
from penstock.sampling import Block
from refusals import refused

LAYERS = {
    "sage": lambda: SAGELayer(6, 4),
    "sage max": lambda: SAGELayer(6, 4, "max"),
    "gcn": lambda: GCNLayer(6, 4),
    "gin": lambda: GINLayer(6, 4),
    "gat": lambda: GATLayer(6, 4, heads=2),
    "gat without loops": lambda: GATLayer(6, 4, heads=2, self_loop=False),
    "gatv2": lambda: GATLayer(6, 4, heads=2, v2=True),
    "transformer": lambda: TransformerLayer(6, 4, heads=2),
}


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_a_mask_of_ones_changes_nothing(name, weights):
    layer, block = LAYERS[name](), random_block(weights=weights, seed=4)
    x = rows(block.num_src, 6, seed=1)
    masked = MaskedBlock(block, torch.ones(block.num_edges))
    torch.testing.assert_close(layer(masked, x), layer(block, x))


@pytest.mark.parametrize("name", LAYERS)
def test_every_edge_has_a_gradient_that_differences_confirm(name):
    layer, block = LAYERS[name]().double(), whole_block()
    x = rows(block.num_src, 6, seed=2, dtype=torch.float64, grad=False)
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(block.num_edges, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda values: layer(MaskedBlock(block, values), x), mask)


@pytest.mark.parametrize("layer", [RGCNLayer, TypedGATLayer, HGTLayer])
def test_typed_layers(layer):
    block = typed_block()
    made = layer(6, 4, ["a", "b"], list(block.relations))
    x = {"a": rows(9, 6), "b": rows(7, 6, seed=1)}

    def masked(fill):
        relations = {
            kind: MaskedBlock(part, torch.full((part.num_edges,), fill)) for kind, part in block.relations.items()
        }
        return Block.of_relations(relations, block.src_counts, block.dst_counts)

    whole, ones, none = made(block, x), made(masked(1.0), x), made(masked(0.0), x)
    for name in whole:
        torch.testing.assert_close(ones[name], whole[name])
        own = made.own[made.node_types.index(name)](x[name][: block.dst_counts[name]])
        torch.testing.assert_close(none[name], own)


def test_masks_multiply_messages_and_leave_totals():
    block = random_block(seed=7)
    mask = torch.rand(block.num_edges, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = rows(block.num_src, 3, dtype=torch.float64, grad=False)
    weighted = random_block(seed=7)
    weighted.weights = mask.numpy()
    counts = torch.from_numpy(np.diff(block.indptr)).clamp(min=1)[:, None]
    torch.testing.assert_close(aggregate(MaskedBlock(block, mask), x, "mean"), dense(weighted) @ x / counts)


class Weighted(torch.nn.Module):
    def forward(self, x, edge_index, edge_weight=None):
        messages = x[edge_index[0]] if edge_weight is None else x[edge_index[0]] * edge_weight[:, None]
        return x.index_add(0, edge_index[1], messages)


class Plain(torch.nn.Module):
    def forward(self, x, edge_index):
        return x.index_add(0, edge_index[1], x[edge_index[0]])


def test_a_module_with_edge_weights():
    block, x = whole_block(), rows(12, 3, grad=False)
    mask = torch.rand(block.num_edges, generator=torch.Generator().manual_seed(0))
    expected = Weighted()(x, torch.from_numpy(np.stack([block.indices, block.destinations()])).long(), mask)
    torch.testing.assert_close(adapt(Weighted())([MaskedBlock(block, mask)], x), expected)


def test_a_module_whose_edges_cannot_be_masked():
    block, x = whole_block(), rows(12, 3, grad=False)
    assert adapt(Plain())([block], x).shape == (12, 3)
    with refused("unsupported-combination Plain MessagePassing edge_weight"):
        adapt(Plain())([MaskedBlock(block, torch.ones(block.num_edges))], x)


def test_pyg_layers_give_what_ours_give():
    nn = pytest.importorskip("torch_geometric.nn")
    block, x = whole_block(), rows(12, 3, grad=False)
    mask = torch.rand(block.num_edges, generator=torch.Generator().manual_seed(0)).requires_grad_()
    theirs, ours = nn.GCNConv(3, 4), GCNLayer(3, 4)
    ours.linear.weight, ours.bias = theirs.lin.weight, theirs.bias
    out = adapt(theirs)([MaskedBlock(block, mask)], x)
    torch.testing.assert_close(out, ours(MaskedBlock(block, mask), x))
    assert torch.autograd.grad(out.sum(), mask)[0].abs().sum() > 0
    # Masks do not stay in the module.
    torch.testing.assert_close(adapt(theirs)([block], x), ours(block, x))


def test_pyg_layers_that_another_explainer_has_used():
    """PyG's Explainer leaves its mask's name among the parameters: masks that replace it must keep their gradients."""
    nn = pytest.importorskip("torch_geometric.nn")
    from torch_geometric.explain.algorithm.utils import clear_masks, set_masks

    block, x = whole_block(), rows(12, 3, grad=False)
    mask = torch.rand(block.num_edges, generator=torch.Generator().manual_seed(0)).requires_grad_()
    layer = nn.GCNConv(3, 4)
    fresh = copy.deepcopy(layer)
    theirs = torch.nn.Parameter(torch.randn(block.num_edges))
    edges = torch.from_numpy(np.stack([block.indices, block.destinations()])).long()
    for used in (False, True):
        set_masks(layer, theirs, edges)
        if used:
            clear_masks(layer)
        state = {**vars(layer), **layer._parameters}
        outs = [adapt(each)([MaskedBlock(block, mask)], x) for each in (layer, fresh)]
        assert torch.equal(*outs)
        gradients = [torch.autograd.grad(out.sum(), mask)[0] for out in outs]
        assert torch.equal(*gradients) and gradients[0].abs().sum() > 0
        # What the other explainer had set is there again.
        assert {**vars(layer), **layer._parameters}.keys() == state.keys()
        assert layer._edge_mask is (None if used else theirs) and layer.explain is (None if used else True)
    layer.explain = False
    with refused("unsupported-combination explain"):
        adapt(layer)([MaskedBlock(block, mask)], x)
    assert layer.explain is False
