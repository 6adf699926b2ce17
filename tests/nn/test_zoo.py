"""Models: shapes from graphs, every option, the layer-wise API equal to the forward pass, training that learns."""

import numpy as np
import pytest
import torch
from random_blocks import random_block, rows

from penstock import EdgeSet, Graph, NodeSet
from penstock.nn import GAT, GCN, GIN, MLP, RGCN, GATv2, GraphModel, GraphSAGE, ModelOptions, build_model, model_options
from penstock.nn.zoo.named import label_width
from penstock.sampling import ALL, BatchKey, NeighbourSampler
from random_graphs import power_law_graph
from refusals import refused

NAMED = [GraphSAGE, GCN, GAT, GATv2, GIN, MLP, RGCN]


def two_blocks(weights=False):
    return [random_block(9, 5, 14, weights), random_block(5, 3, 7, weights, seed=1)]


@pytest.mark.covering(2)
@pytest.mark.parametrize("make", NAMED)
@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
@pytest.mark.parametrize("jump", ["none", "cat", "max"])
@pytest.mark.parametrize("residual", [False, True])
def test_every_option(make, norm, jump, residual):
    torch.manual_seed(0)
    model = make(6, 4, hidden=8, layers=2, norm=norm, jump=jump, residual=residual, dropout=0.2, input_dropout=0.1)
    x = rows(9, 6)
    out = model(two_blocks(), x)
    assert out.shape == (3, 4)
    out.square().sum().backward()
    assert all(value.grad is not None for value in model.parameters())
    assert model.num_layers == 2
    assert model.needs_all_outputs == (jump != "none")
    assert model.layerwise


@pytest.mark.parametrize("make", NAMED)
@pytest.mark.parametrize("jump", ["none", "cat"])
def test_layers_in_chunks_give_the_forward_pass(make, jump):
    """Prepare, layer and join on pieces of a graph, as exact inference does, against one pass over whole lists."""
    torch.manual_seed(0)
    graph = power_law_graph(60, 3)
    model = make(5, 4, hidden=8, layers=2, jump=jump, norm="batch", residual=True).eval()
    features = torch.randn(60, 5)
    seeds = np.arange(0, 60, 7)
    totals = np.diff(graph.indptr).astype(np.float32)

    def sample(seeds, layers):
        batch = NeighbourSampler(graph, [ALL] * layers).sample(seeds, BatchKey(0, 0, 0))
        for block in batch.blocks:
            block.totals = totals[batch.vertices["node"][: block.num_src]]
        return batch

    batch = sample(seeds, 2)
    expected = model(batch.blocks, features[batch.vertices["node"]])
    current, outputs = model.prepare(features), []
    for i in range(2):
        pieces = [sample(part, 1) for part in np.array_split(np.arange(60), 4)]
        current = torch.cat([model.layer(i, piece.blocks[0], current[piece.vertices["node"]]) for piece in pieces])
        outputs.append(current)
    kept = outputs if model.needs_all_outputs else outputs[-1:]
    torch.testing.assert_close(model.join([part[seeds] for part in kept]), expected, rtol=1e-4, atol=1e-5)


def labelled(y, x=True):
    count = len(y)
    fields = {"y": y} | ({"x": np.zeros((count, 7), np.float32)} if x else {})
    edges = EdgeSet(np.zeros(count + 1, np.int64), np.zeros(0, np.int32))
    return Graph({"node": NodeSet(count, fields)}, {("node", "to", "node"): edges}, "tiny")


@pytest.mark.parametrize(
    ("y", "width"),
    [
        (np.array([0, 5, -1]), 6),
        (np.array([[0], [2], [1]]), 3),
        (np.zeros((3, 9), np.int8), 9),
        (np.array([0.5, 1.0, 2.0]), 1),
    ],
)
def test_widths_come_from_the_graph(y, width):
    for make in NAMED:
        model = make(labelled(y), hidden=8, layers=1)
        block = random_block(4, 2, 5)
        assert model([block], rows(4, 7)).shape == (2, width)


def test_what_needs_totals_says_so():
    assert GCN(3, 2).needs_totals
    assert GIN(3, 2).needs_totals
    assert GraphSAGE(3, 2, aggregate="sum").needs_totals
    assert not any(make(3, 2).needs_totals for make in (GraphSAGE, GAT, MLP, RGCN))


@pytest.mark.parametrize("name", ["sage", "gcn", "gat", "gatv2", "gin", "rgcn", "mlp"])
def test_models_are_built_from_options(name):
    model = build_model(ModelOptions(model=name, hidden=8, layers=2), 6, 4)
    assert model(two_blocks(), rows(9, 6)).shape == (3, 4)
    assert model.options.model == name


def test_a_baseline_takes_any_number_of_blocks_and_no_neighbour():
    model = MLP(6, 4, hidden=8, layers=3).eval()
    x, changed = rows(9, 6, grad=False), rows(9, 6, grad=False)
    changed[3:] += 1
    assert torch.equal(model(two_blocks(), x), model(two_blocks(), changed))


def test_dropout_repeats_with_torch_s_seed():
    model, results = GraphSAGE(6, 4, hidden=8, layers=2), []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(model(two_blocks(), rows(9, 6)))
    assert torch.equal(*results)


def test_one_row_is_too_few_to_normalise_by():
    model = GraphSAGE(6, 4, hidden=8, layers=1, norm="batch", jump="max")
    mean = model.ends[0].norm.running_mean.clone()
    assert model([random_block(4, 1, 3)], rows(4, 6)).isfinite().all()
    assert torch.equal(mean, model.ends[0].norm.running_mean)


@pytest.mark.parametrize("make", [GraphSAGE, GCN, GAT, GATv2, GIN])
def test_a_model_learns_what_its_neighbours_say(make):
    """Labels are the sign of the neighbours' mean, which a vertex cannot see in itself."""
    torch.manual_seed(0)
    graph = power_law_graph(300, 4)
    x = torch.randn(300, 4)
    batch = NeighbourSampler(graph, [ALL]).sample(np.arange(300), BatchKey(0, 0, 0))
    block = batch.blocks[0]
    block.totals = np.diff(graph.indptr).astype(np.float32)
    means = torch.stack([x[graph.indices[graph.indptr[v] : graph.indptr[v + 1]]].mean(dim=0) for v in range(300)])
    y = (means[:, 0] > 0).long()
    model = make(4, 2, hidden=16, layers=1, dropout=0.0)
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(80):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model([block], x), y)
        loss.backward()
        optimiser.step()
    accuracy = (model([block], x).argmax(dim=1) == y).float().mean()
    assert accuracy > 0.85


def test_bad_requests_are_one_sentence():
    with refused("shape-mismatch 3 2"):
        GraphSAGE(6, 4)(two_blocks(), rows(9, 6))
    with refused("invalid-value 10 4"):
        GAT(6, 4, hidden=10)
    with refused("invalid-value hiden hidden"):
        model_options(hiden=3)
    with refused("option-missing"):
        GraphSAGE(6)
    with refused("field-missing"):
        GraphSAGE(labelled(np.zeros(3, np.int64), x=False))
    with refused("option-missing"):
        label_width(NodeSet(3))
    with refused("unsupported-combination"):
        GraphModel(ModelOptions(model="rgcn"), 3, 2)


def test_every_option_has_a_line_of_help():
    for name, field in ModelOptions.model_fields.items():
        assert field.description, name
        assert "\n" not in field.description
        assert not field.is_required()
