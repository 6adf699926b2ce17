"""Layers that read what edges carry: PyG's give the same, forward and backward; messages over a dense formula."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from penstock.nn import GATLayer, GINELayer, TransformerLayer
from penstock.nn.attention import attend_by_scores
from penstock.sampling.block import Block
from refusals import refused

WIDTH, EDGE = 5, 3


def carrying_block(weights=False, loops=True, dtype=torch.float64):
    """8 sources, 5 destinations, of which one has no edges; some edges are self loops, some are there twice."""
    rng = np.random.default_rng(0)
    lengths = np.array([4, 0, 6, 1, 5])
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = rng.integers(0, 8, lengths.sum()).astype(np.int32)
    if loops:
        indices[[0, 5]] = [0, 2]
    block = Block(indptr, indices, 8)
    if weights:
        block.weights = rng.uniform(0.5, 2, len(indices)).astype(np.float32)
        block.totals = rng.uniform(5, 9, 8).astype(np.float32)
    block.edge_attr = torch.from_numpy(rng.normal(size=(len(indices), EDGE))).to(dtype)
    return block


def inputs(rows=8, width=WIDTH):
    torch.manual_seed(1)
    return torch.randn(rows, width, dtype=torch.float64, requires_grad=True)


def edge_index_of(block):
    return torch.from_numpy(np.stack([block.indices, block.destinations()]).astype(np.int64))


def same(ours, theirs, x, layer, module, pairs):
    """Outputs, and gradients of the inputs and of the parameters that correspond."""
    assert_close(ours, theirs)
    weigh = torch.randn_like(ours)
    own = torch.autograd.grad((ours * weigh).sum(), [x, *(pair[0] for pair in pairs)])
    other = torch.autograd.grad((theirs * weigh).sum(), [x, *(pair[1] for pair in pairs)])
    for one, two in zip(own, other, strict=True):
        assert_close(one, two.view_as(one))


def matched(layer, module, names):
    """Parameters of both, the module's set to the layer's."""
    pairs = []
    for ours, theirs in names:
        mine, its = layer.get_parameter(ours), module.get_parameter(theirs)
        with torch.no_grad():
            its.copy_(mine.view_as(its))
        pairs.append((mine, its))
    return pairs


@pytest.mark.parametrize("concat", [True, False])
def test_gatv2_is_pygs(concat):
    pyg = pytest.importorskip("torch_geometric.nn")
    block, x = carrying_block(), inputs()
    layer = GATLayer(WIDTH, 4, 2, concat, v2=True, edge_width=EDGE).double()
    module = pyg.GATv2Conv(WIDTH, 4, 2, concat, edge_dim=EDGE).double()
    kinds = [("source.weight", "lin_l.weight"), ("source.bias", "lin_l.bias"), ("target.weight", "lin_r.weight")]
    kinds += [("target.bias", "lin_r.bias"), ("edge.weight", "lin_edge.weight"), ("score_source", "att"), ("bias",) * 2]
    pairs = matched(layer, module, kinds)
    theirs = module(x, edge_index_of(block), block.edge_attr)[: block.num_dst]
    same(layer(block, x), theirs, x, layer, module, pairs)


def test_gine_is_pygs():
    pyg = pytest.importorskip("torch_geometric.nn")
    block, x = carrying_block(), inputs()
    layer = GINELayer(WIDTH, 4, EDGE, eps=0.3).double()
    module = pyg.GINEConv(layer.mlp, 0.3, edge_dim=EDGE).double()
    pairs = matched(layer, module, [("edge.weight", "lin.weight"), ("edge.bias", "lin.bias")])
    theirs = module(x, edge_index_of(block), block.edge_attr)[: block.num_dst]
    same(layer(block, x), theirs, x, layer, module, pairs)


@pytest.mark.parametrize("concat, width", [(True, EDGE), (False, EDGE), (True, 0)])
def test_transformer_is_pygs(concat, width):
    pyg = pytest.importorskip("torch_geometric.nn")
    block, x = carrying_block(), inputs()
    layer = TransformerLayer(WIDTH, 4, 2, concat, width).double()
    module = pyg.TransformerConv(WIDTH, 4, 2, concat, edge_dim=width or None).double()
    kinds = [(f"{a}.{kind}", f"lin_{b}.{kind}") for a, b in _PARTS for kind in ("weight", "bias")]
    pairs = matched(layer, module, kinds + ([("edge.weight", "lin_edge.weight")] if width else []))
    theirs = module(x, edge_index_of(block), block.edge_attr if width else None)[: block.num_dst]
    same(layer(block, x), theirs, x, layer, module, pairs)


@pytest.mark.parametrize("width", [0, EDGE])
def test_a_layer_that_encodes_ages_is_pygs_over_their_cosines(width):
    pyg = pytest.importorskip("torch_geometric.nn")
    block, x = carrying_block(), inputs()
    block.ages = np.random.default_rng(3).uniform(0, 1e4, block.num_edges).astype(np.float32)
    layer = TransformerLayer(WIDTH, 4, 2, True, width, time_width=6).double()
    with torch.no_grad():
        layer.time.phase.normal_()
    module = pyg.TransformerConv(WIDTH, 4, 2, True, edge_dim=width + 6).double()
    kinds = [(f"{a}.{kind}", f"lin_{b}.{kind}") for a, b in _PARTS for kind in ("weight", "bias")]
    pairs = matched(layer, module, [*kinds, ("edge.weight", "lin_edge.weight")])
    ages = torch.from_numpy(block.ages).double()[:, None]
    read = torch.cat([block.edge_attr[:, :width], torch.cos(ages * layer.time.frequency + layer.time.phase)], dim=1)
    theirs = module(x, edge_index_of(block), read)[: block.num_dst]
    same(layer(block, x), theirs, x, layer, module, [*pairs, (layer.time.phase, layer.time.phase)])
    block.ages = None
    with refused("mismatched-inputs time"):
        layer(block, x)


_PARTS = [("key", "key"), ("query", "query"), ("value", "value"), ("own", "skip")]


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_attention_by_scores_is_the_dense_formula(weights, kept):
    block = carrying_block(weights)
    torch.manual_seed(2)
    scores = torch.randn(block.num_edges, 2, dtype=torch.float64, requires_grad=True)
    values = inputs(8, 6)
    mask = torch.rand(block.num_edges, 2, dtype=torch.float64) if kept else None
    parts = torch.exp(scores) * (1 if block.weights is None else torch.from_numpy(block.weights)[:, None].double())
    at = torch.from_numpy(block.destinations().astype(np.int64))
    sums = torch.zeros(5, 2, dtype=torch.float64).index_add(0, at, parts)
    shares = parts / sums[at] * (1 if mask is None else mask)
    rows = values[torch.from_numpy(block.indices.astype(np.int64))].view(-1, 2, 3) * shares[:, :, None]
    dense = torch.zeros(5, 6, dtype=torch.float64).index_add(0, at, rows.reshape(-1, 6))
    found = attend_by_scores(block, scores, values, mask)
    assert_close(found, dense)
    weigh = torch.randn_like(dense)
    ours, theirs = (torch.autograd.grad((each * weigh).sum(), [scores, values]) for each in (found, dense))
    for one, two in zip(ours, theirs, strict=True):
        assert_close(one, two.view_as(one))


def test_sums_are_estimates():
    """Of sampled lists gine adds up what whole lists would give, as gin does."""
    block = carrying_block(weights=True)
    layer, x = GINELayer(WIDTH, 4, EDGE, mlp=torch.nn.Identity()).double(), inputs()
    messages = torch.relu(x[block.indices.astype(np.int64)] + layer.edge(block.edge_attr))
    weighed = messages * torch.from_numpy(block.weights)[:, None].double()
    at = torch.from_numpy(block.destinations().astype(np.int64))
    assert_close(layer(block, x), torch.zeros(5, WIDTH, dtype=torch.float64).index_add(0, at, weighed) + x[:5])


def test_blocks_without_edges_and_edges_that_carry_nothing():
    empty = Block(np.zeros(4, np.int64), np.empty(0, np.int32), 3, edge_attr=torch.empty(0, EDGE))
    x = torch.randn(3, WIDTH)
    layers = (
        GATLayer(WIDTH, 2, 2, v2=True, edge_width=EDGE),
        GINELayer(WIDTH, 4, EDGE),
        TransformerLayer(WIDTH, 2, 2, edge_width=EDGE),
    )
    for layer in layers:
        assert layer(empty, x).shape == (3, 4)
        with refused("shape-mismatch edge_attr"):
            layer(Block(empty.indptr, empty.indices, 3), x)
    with refused("unsupported-combination gatv2"):
        GATLayer(WIDTH, 2, edge_width=EDGE)
