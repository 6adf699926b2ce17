"""Any torch module on blocks: PyG's models give what they give on PyG's batches."""

import pytest
import torch
from random_blocks import rows, typed_block

from penstock import PenstockError
from penstock.nn import adapt
from penstock.sampling import BatchKey, MiniBatch, NeighbourSampler
from random_graphs import power_law_graph

pyg = pytest.importorskip("torch_geometric.nn")


def sampled() -> MiniBatch:
    return NeighbourSampler(power_law_graph(200, 4), [3, 2]).sample(torch.arange(10).numpy(), BatchKey(0, 0, 0))


def test_pyg_s_model_gives_the_seeds_rows():
    torch.manual_seed(0)
    module, batch = pyg.GraphSAGE(5, 8, 2, 4), sampled()
    model, x = adapt(module, num_layers=2), rows(len(batch.vertices), 5)
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
    x = rows(len(batch.vertices), 5)
    with pytest.raises(PenstockError, match="gave tuple where"):
        adapt(Pair())(batch.blocks, x)
    with pytest.raises(PenstockError, match="gave tuple where tensors by node type"):
        adapt(Pair(), typed=True)([typed_block()], {})
    with pytest.raises(PenstockError, match="3 layers was given 2 blocks"):
        adapt(Pair(), num_layers=3)(batch.blocks, x)
