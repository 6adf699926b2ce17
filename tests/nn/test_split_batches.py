"""A batch computed in parts: with dropout every seed has the outputs and gradients it has in the whole."""

import numpy as np
import pytest
import torch

from penstock.nn import build_model
from penstock.nn.drop import dropping
from penstock.nn.layer_table import model_options
from penstock.sampling import BatchKey, NeighbourSampler
from penstock.sampling.device.block import on_device
from training_graphs import community_graph

KEY = BatchKey(3, 1, 4)
MODELS = {
    "sage": {"model": "sage", "dropout": 0.4, "input_dropout": 0.2},
    "sage, elu, residual": {"model": "sage", "dropout": 0.4, "activation": "elu", "residual": True, "norm": "layer"},
    "gcn, all layers": {"model": "gcn", "dropout": 0.4, "jump": "cat"},
    "gin": {"model": "gin", "dropout": 0.3, "input_dropout": 0.3},
    "gat": {"model": "gat", "heads": 2, "dropout": 0.4, "attention_dropout": 0.3},
    "gatv2": {"model": "gatv2", "heads": 2, "dropout": 0.4, "attention_dropout": 0.3},
}


@pytest.mark.parametrize("name", MODELS)
def test_halves_are_the_whole(name):
    assert_halves_are_the_whole(name, None)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in MODELS if "gat" not in name])  # interpreted, attention takes seconds
def test_halves_are_the_whole_on_a_device(name, device):
    assert_halves_are_the_whole(name, device)


def assert_halves_are_the_whole(name, device):
    """The second half's vertices stand in other rows than in the whole."""
    torch.manual_seed(0)
    graph = community_graph(150)
    sampler = NeighbourSampler(graph, [3, 2], totals=True)
    model = build_model(model_options(layers=2, hidden=12, **MODELS[name]), 4, 3)
    seeds = np.random.default_rng(0).permutation(150)[:24]
    batches = [sampler.sample(part, KEY) for part in (seeds, seeds[:12], seeds[12:])]
    assert not np.array_equal(batches[0].vertices["node"][12:24], batches[2].vertices["node"][12:24])
    expected, gradients = computed(model, graph, batches[0], None)
    parts = [computed(model, graph, batch, device) for batch in batches[1:]]
    torch.testing.assert_close(torch.cat([out for out, _ in parts]), expected, rtol=1e-4, atol=1e-5)
    for whole, *halves in zip(gradients, *(grads for _, grads in parts), strict=True):
        torch.testing.assert_close(sum(halves), whole, rtol=1e-4, atol=1e-4)
    # Masks that went by place would show.
    misnamed, _ = computed(model, graph, batches[2], device, names={"node": np.arange(150)})
    assert (misnamed - expected[12:]).abs().max() > 0.01


def computed(model, graph, batch, device, names=None):
    """Outputs and gradients of a batch, on the host's kernels or a device's."""
    key, names = KEY.purpose("dropout"), batch.row_names if names is None else names
    x, blocks = torch.from_numpy(graph.x[batch.vertices["node"]]), batch.blocks
    if device is not None:
        model, x, blocks = model.to(device), x.to(device), [on_device(block, device) for block in blocks]
        key = torch.from_numpy(np.array([key], np.uint64).view(np.int64)).to(device)
        names = {"node": torch.from_numpy(names["node"]).to(device)}
    with dropping(key, names):
        out = model(blocks, x)
    grads = torch.autograd.grad(out.square().sum(), list(model.parameters()))
    model.cpu()
    return out.detach().cpu(), [grad.cpu() for grad in grads]


def test_a_batch_of_a_cut_graph_goes_by_original_numbers():
    """The same graph with its vertices renumbered: what was drawn for a vertex follows its name."""
    torch.manual_seed(0)
    graph = community_graph(150)
    batch = NeighbourSampler(graph, [3, 2]).sample(np.arange(20), KEY)
    assert batch.row_names is batch.vertices
    new = np.random.default_rng(1).permutation(150)
    model = build_model(model_options(layers=2, hidden=12, model="sage", dropout=0.4), 4, 3)
    expected, _ = computed(model, graph, batch, None)
    batch.names = dict(batch.vertices)
    x = graph.x[batch.vertices["node"]]
    batch.vertices["node"] = new[batch.vertices["node"]]
    with dropping(KEY.purpose("dropout"), batch.row_names):
        assert torch.equal(model(batch.blocks, torch.from_numpy(x)), expected)
