"""Layers equal PyG's, forward and backward, on whole and on sampled blocks; gradients equal finite differences."""

import pytest
import torch
from random_blocks import edge_index, random_block, rows, whole_block
from torch import nn
from torch.autograd import gradcheck
from torch.func import functional_call

from penstock.nn import DenseLayer, GATLayer, GCNLayer, GINLayer, SAGELayer
from refusals import refused

pyg = pytest.importorskip("torch_geometric.nn")


def copy_into(ours, theirs):
    """Give both the same weights: `pairs` of parameters."""
    with torch.no_grad():
        for mine, other in zip(ours, theirs, strict=True):
            other.copy_(mine.view(other.shape))


def sage_pair(reduce):
    ours, theirs = SAGELayer(6, 4, reduce), pyg.SAGEConv(6, 4, aggr=reduce)
    weights = theirs.lin_l.weight, theirs.lin_l.bias, theirs.lin_r.weight
    return ours, [ours.neighbours.weight, ours.neighbours.bias, ours.own.weight], theirs, weights


def gat_pair(concat, loop):
    ours = GATLayer(6, 4, 3, concat, self_loop=loop)
    theirs = pyg.GATConv(6, 4, 3, concat, add_self_loops=loop)
    weights = theirs.lin.weight, theirs.att_src, theirs.att_dst, theirs.bias
    nn.init.normal_(ours.bias)
    return ours, [ours.source.weight, ours.score_source, ours.score_target, ours.bias], theirs, weights


def gatv2_pair(concat, loop):
    ours = GATLayer(6, 4, 3, concat, v2=True, self_loop=loop)
    theirs = pyg.GATv2Conv(6, 4, 3, concat, add_self_loops=loop)
    weights = (theirs.lin_l.weight, theirs.lin_l.bias, theirs.lin_r.weight, theirs.lin_r.bias, theirs.att, theirs.bias)
    nn.init.normal_(ours.bias)
    mine = [ours.source.weight, ours.source.bias, ours.target.weight, ours.target.bias, ours.score_source, ours.bias]
    return ours, mine, theirs, weights


def gin_pair():
    ours = GINLayer(6, 4, eps=0.3, train_eps=True)
    mlp = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 4))
    theirs = pyg.GINConv(mlp, train_eps=True)
    return ours, [*ours.mlp.parameters(), ours.eps], theirs, [*mlp.parameters(), theirs.eps]


PAIRS = [
    lambda: sage_pair("mean"),
    lambda: sage_pair("max"),
    lambda: sage_pair("sum"),
    lambda: gat_pair(True, True),
    lambda: gat_pair(False, False),
    lambda: gatv2_pair(True, True),
    lambda: gatv2_pair(False, False),
    gin_pair,
]


def assert_equal_to_pyg(pair, block, theirs_of):
    ours, mine, theirs, weights = pair
    copy_into(mine, weights)
    x, y = rows(block.num_src, 6), rows(block.num_src, 6)
    out, other = ours(block, x), theirs_of(theirs, y)
    torch.testing.assert_close(out, other, rtol=1e-5, atol=1e-5)
    mix = rows(*out.shape, seed=5, grad=False)
    one = torch.autograd.grad((out * mix).sum(), [x, *mine])
    two = torch.autograd.grad((other * mix).sum(), [y, *weights])
    for left, right in zip(one, two, strict=True):
        torch.testing.assert_close(left, right.view(left.shape), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", PAIRS)
def test_equal_to_pyg_on_whole_neighbourhoods(make):
    torch.manual_seed(0)
    block = whole_block()
    assert_equal_to_pyg(make(), block, lambda layer, x: layer(x, edge_index(block)))


@pytest.mark.parametrize("make", PAIRS)
@pytest.mark.parametrize("edges", [0, 14, 40])
def test_equal_to_pyg_on_sampled_blocks(make, edges):
    torch.manual_seed(0)
    block = random_block(edges=edges, totals=False)
    pair = make()
    if isinstance(pair[2], pyg.GATConv):  # PyG shares GAT's weights between the two ends only for a single matrix
        assert_equal_to_pyg(pair, block, lambda layer, x: layer(x, edge_index(block))[:5])
    else:
        assert_equal_to_pyg(pair, block, lambda layer, x: layer((x, x[:5]), edge_index(block)))


def test_gcn_is_equal_to_pyg_on_whole_neighbourhoods():
    torch.manual_seed(0)
    ours, theirs, block = GCNLayer(6, 4), pyg.GCNConv(6, 4), whole_block()
    nn.init.normal_(ours.bias)
    pair = ours, [ours.linear.weight, ours.bias], theirs, (theirs.lin.weight, theirs.bias)
    assert_equal_to_pyg(pair, block, lambda layer, x: layer(x, edge_index(block)))


def test_gcn_needs_the_totals_of_source_rows():
    layer, block = GCNLayer(6, 4), random_block(totals=False)
    with refused("shape-mismatch 9"):
        layer(block, rows(9, 6))
    block.totals = random_block().totals[:5]
    with refused("shape-mismatch 5 9"):
        layer(block, rows(9, 6))


LAYERS = [
    lambda: SAGELayer(3, 2),
    lambda: SAGELayer(3, 2, "sum", bias=False),
    lambda: SAGELayer(3, 2, "max"),
    lambda: GCNLayer(3, 2),
    lambda: GATLayer(3, 2, 2),
    lambda: GATLayer(3, 2, 2, concat=False, self_loop=False, two_sided=True),
    lambda: GATLayer(3, 2, 2, v2=True),
    lambda: GINLayer(3, 2, train_eps=True),
    lambda: DenseLayer(3, 2),
]


@pytest.mark.covering(2)
@pytest.mark.parametrize("make", LAYERS)
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("edges", [0, 12])
def test_gradients(make, weights, edges):
    torch.manual_seed(1)
    layer, block = make().double(), random_block(7, 4, edges, weights)
    names = [name for name, _ in layer.named_parameters()]
    x = rows(7, 3, dtype=torch.float64)

    def run(x, *parameters):
        return functional_call(layer, dict(zip(names, parameters, strict=True)), (block, x))

    assert gradcheck(run, (x, *(value.detach().requires_grad_() for value in layer.parameters())))


def test_attention_dropout_only_while_training():
    torch.manual_seed(0)
    layer, block, x = GATLayer(6, 4, 2, dropout=0.6), random_block(), rows(9, 6)
    one, two = layer(block, x), layer(block, x)
    assert not torch.equal(one, two)
    layer.eval()
    assert torch.equal(layer(block, x), layer(block, x))


def test_attention_between_two_matrices_is_two_sided():
    with refused("unsupported-combination two_sided=True self_loop=False"):
        GATLayer(6, 4)(random_block(), rows(9, 6), rows(5, 6))
