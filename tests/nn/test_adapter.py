"""Any torch module on blocks: PyG's models give what they give on PyG's batches."""

from dataclasses import replace

import pytest
import torch
from random_blocks import rows, typed_block

from penstock.nn import adapt
from penstock.sampling import BatchKey, MiniBatch, NeighbourSampler
from penstock.sampling.cluster import ClusterSampler, clusters_of
from penstock.sampling.labor import Labor
from penstock.sampling.layerwise import Ladies
from random_graphs import power_law_graph
from refusals import refused

pyg = pytest.importorskip("torch_geometric.nn")


def sampled() -> MiniBatch:
    return NeighbourSampler(power_law_graph(200, 4), [3, 2]).sample(torch.arange(10).numpy(), BatchKey(0, 0, 0))


def test_pyg_s_model_gives_the_seeds_rows():
    torch.manual_seed(0)
    module, batch = pyg.GraphSAGE(5, 8, 2, 4), sampled()
    model, x = adapt(module, num_layers=2), rows(len(batch.vertices["node"]), 5)
    batch.features[batch.node_type] = x
    data = batch.to_pyg()
    out = model(batch.blocks, x)
    torch.testing.assert_close(out, module(data.x, data.edge_index)[:10])
    assert out.shape == (10, 4)
    assert not model.layerwise
    out.sum().backward()
    assert all(value.grad is not None for value in model.parameters())


class Hetero(torch.nn.Module):
    def __init__(self, kinds):
        super().__init__()
        self.layer = pyg.HeteroConv({kind: pyg.SAGEConv((5, 5), 4) for kind in kinds})
        self.kinds = kinds

    def forward(self, x_dict, edge_index_dict):
        assert set(edge_index_dict) == set(self.kinds)
        return self.layer(x_dict, edge_index_dict)


def test_typed_modules_take_and_give_dictionaries():
    block = typed_block()
    kinds = [*block.relations, ("a", "unseen", "b")]
    module, x = Hetero(kinds), {"a": rows(9, 5), "b": rows(7, 5)}
    out = adapt(module, typed=True, edge_types=kinds)([block], x)
    assert {name: tuple(part.shape) for name, part in out.items()} == {"a": (4, 4), "b": (3, 4)}
    sum(part.sum() for part in out.values()).backward()
    assert module.layer.convs[kinds[0]].lin_l.weight.grad is not None


def test_modules_that_do_not_fit_are_refused():
    class Pair(torch.nn.Module):
        def forward(self, x, edge_index):
            return x, x

    batch = sampled()
    x = rows(len(batch.vertices["node"]), 5)
    with refused("user-code-failed"):
        adapt(Pair())(batch.blocks, x)
    with refused("user-code-failed"):
        adapt(Pair(), typed=True)([typed_block()], {})
    with refused("shape-mismatch 3 2"):
        adapt(Pair(), num_layers=3)(batch.blocks, x)


class Keeps(torch.nn.Module):
    """Keeps its features, and writes to them."""

    def __init__(self):
        super().__init__()
        self.linear, self.kept = torch.nn.Linear(5, 4), []

    def forward(self, x, edges):
        given = x if isinstance(x, dict) else {"node": x}
        self.kept.append(dict(given))
        out = {name: self.linear(part) for name, part in given.items()}
        for part in given.values():
            part.detach().add_(1)
        return out if isinstance(x, dict) else out["node"]


@pytest.mark.parametrize("mode", [True, False])
def test_features_are_the_module_s_own(mode):
    module, batch = Keeps(), sampled()
    x = rows(len(batch.vertices["node"]), 5).detach()
    before = x.clone()
    model = adapt(module).train(mode)
    model(batch.blocks, x)
    assert torch.equal(x, before)
    x.zero_()
    assert torch.equal(module.kept[0]["node"], before + 1)
    typed, block = Keeps(), typed_block()
    given = {"a": rows(9, 5), "b": rows(7, 5)}
    copies = {name: part.clone() for name, part in given.items()}
    adapt(typed, typed=True)([block], given)
    assert all(torch.equal(given[name], copies[name]) for name in given)


def test_learnable_features_still_get_their_gradients():
    batch = sampled()
    x = rows(len(batch.vertices["node"]), 5).requires_grad_()
    adapt(pyg.GraphSAGE(5, 8, 2, 4))(batch.blocks, x).sum().backward()
    assert x.grad is not None
    assert bool(x.grad.any())


def test_edges_with_weights_are_refused():
    graph = power_law_graph(200, 4)
    seeds, key = torch.arange(10).numpy(), BatchKey(0, 0, 0)
    module = adapt(pyg.GraphSAGE(5, 8, 2, 4))
    for batch in (Labor(graph, [3, 2]).sample(seeds, key), Ladies(graph, [20, 20]).sample(seeds, key)):
        with refused("unsupported-combination weight"):
            module(batch.blocks, rows(len(batch.vertices["node"]), 5))
    clusters = ClusterSampler(graph, clusters_of(graph, 4, 0), seeds, layers=2)
    batch = clusters.sample(clusters.items[:2], key)
    assert module(batch.blocks, rows(len(batch.vertices["node"]), 5)).shape == (len(batch.seeds["node"]), 4)


def test_typed_edges_with_weights_are_refused():
    block = typed_block()
    kind, plain = next(iter(block.relations.items()))
    block.relations[kind] = replace(plain, weights=torch.ones(plain.num_edges).numpy())
    x = {"a": rows(9, 5), "b": rows(7, 5)}
    with refused("unsupported-combination weight"):
        adapt(Keeps(), typed=True)([block], x)
