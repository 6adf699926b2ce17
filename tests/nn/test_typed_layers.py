"""Layers on typed blocks: equal to PyG's RGCNConv and to sums over relations; absent types and many relations work."""

import numpy as np
import pytest
import torch
from random_blocks import edge_index, random_block, rows, typed_block
from torch.autograd import gradcheck
from torch.func import functional_call

from penstock.nn import HGTLayer, RGCNLayer, SAGELayer, TypedGATLayer
from penstock.nn.aggregation import constant_input
from penstock.sampling import Block
from refusals import refused

pyg = pytest.importorskip("torch_geometric.nn")


def inputs(width=6, dtype=torch.float32):
    return {"a": rows(9, width, 1, dtype), "b": rows(7, width, 2, dtype)}


@pytest.mark.covering(1)
@pytest.mark.parametrize("order", ["aggregate", "transform"])
@pytest.mark.parametrize("bases, blocks", [(0, 0), (3, 0), (0, 2)])
def test_equal_to_pyg_with_many_relations(bases, blocks, order):
    torch.manual_seed(0)
    kinds = [("v", f"r{i}", "v") for i in range(45)]
    relations = {kind: random_block(9, 5, i % 7, seed=i) for i, kind in enumerate(kinds)}
    block = Block.of_relations(relations, {"v": 9}, {"v": 5})
    ours = RGCNLayer(6, 4, ["v"], kinds, bases, blocks, order=order)
    theirs = pyg.RGCNConv((6, 6), 4, 45, num_bases=bases or None, num_blocks=blocks or None)
    pairs = [(ours.weight, theirs.weight), (ours.own[0].bias, theirs.bias)]
    if bases:
        pairs.append((ours.mixture, theirs.comp))
    with torch.no_grad():
        for mine, other in pairs:
            other.copy_(mine)
        theirs.root.copy_(ours.own[0].weight.t())
    edges = torch.cat([edge_index(part) for part in relations.values()], dim=1)
    kind_of = torch.from_numpy(np.repeat(np.arange(45), [part.num_edges for part in relations.values()]))
    x, y = rows(9, 6), rows(9, 6)
    out, other = ours(block, {"v": x})["v"], theirs((y, y[:5]), edges, kind_of)
    torch.testing.assert_close(out, other, rtol=1e-5, atol=1e-5)
    one = torch.autograd.grad(out.square().sum(), [x, *(mine for mine, _ in pairs)])
    two = torch.autograd.grad(other.square().sum(), [y, *(theirs for _, theirs in pairs)])
    torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width_in", [6, 5])
def test_hgt_is_pygs(width_in):
    """With a learned skip where widths are equal and without one where not; outputs and all gradients."""
    torch.manual_seed(0)
    block, names = typed_block(), ["a", "b"]
    ours = HGTLayer(width_in, 6, names, list(block.relations), heads=2)
    theirs = pyg.HGTConv(width_in, 6, (names, list(block.relations)), heads=2)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(0, 0.5)
        for parameter, values in parameters_of_pyg(ours, theirs, lambda own: own):
            parameter.copy_(values)
    x, y = inputs(width_in), inputs(width_in)
    # PyG computes all rows; those behind the block's destinations are left out.
    found = theirs(y, {kind: edge_index(part) for kind, part in block.relations.items()})
    out, other = ours(block, x), {name: found[name][: block.dst_counts[name]] for name in names}
    torch.testing.assert_close(out, other, rtol=1e-5, atol=1e-5)
    for result in (out, other):
        sum(part.square().sum() for part in result.values()).backward()
    for name in names:
        torch.testing.assert_close(x[name].grad, y[name].grad, rtol=1e-4, atol=1e-5)
    for parameter, gradient in parameters_of_pyg(ours, theirs, lambda own: own.grad):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5)


def parameters_of_pyg(layer, theirs, of):
    """Each of PyG's parameters, and what `of` makes of the layer's own ones that it stands for."""
    for place, name in enumerate(layer.node_types):
        source = layer.source_types.index(name)
        for what in ("weight", "bias"):
            joint = (layer.key[source], layer.query[place], layer.value[source])
            yield getattr(theirs.kqv_lin.lins[name], what), torch.cat([of(getattr(each, what)) for each in joint])
            yield getattr(theirs.out_lin.lins[name], what), of(getattr(layer.own[place].out, what))
        if layer.own[place].skip is not None:
            yield theirs.skip[name], of(layer.own[place].skip)
    yield theirs.k_rel.weight, of(layer.relation_key).transpose(0, 1).flatten(0, 1)
    yield theirs.v_rel.weight, of(layer.relation_value).transpose(0, 1).flatten(0, 1)
    for place, kind in enumerate(layer._place):
        yield theirs.p_rel["__".join(kind)], of(layer.relation_scale)[place][None]


@pytest.mark.parametrize("reduce", ["mean", "sum", "max"])
def test_a_sum_over_relations_of_sage(reduce):
    block, x = typed_block(), inputs()
    layer = RGCNLayer(6, 4, ["a", "b"], list(block.relations), aggregate=reduce)
    out = layer(block, x)
    for name, place in (("a", 0), ("b", 1)):
        expected = layer.own[place](x[name][: block.dst_counts[name]])
        for weight, ((source, _, target), part) in zip(layer.weight, block.relations.items(), strict=True):
            if target == name:
                sage = SAGELayer(6, 4, reduce, bias=False)
                with torch.no_grad():
                    sage.neighbours.weight.copy_(weight.t())
                    sage.own.weight.zero_()
                expected = expected + sage(part, x[source])
        torch.testing.assert_close(out[name], expected)


MAKERS = [
    lambda kinds: RGCNLayer(3, 2, ["a", "b"], kinds),
    lambda kinds: RGCNLayer(3, 2, ["a", "b"], kinds, bases=2, aggregate="sum"),
    lambda kinds: RGCNLayer(3, 6, ["a", "b"], kinds, blocks=3),
    lambda kinds: HGTLayer(3, 4, ["a", "b"], kinds, heads=2),
    lambda kinds: HGTLayer(3, 3, ["a", "b"], kinds, answer=2),
    lambda kinds: TypedGATLayer(3, 2, ["a", "b"], kinds, heads=2),
    lambda kinds: TypedGATLayer(3, 2, ["a", "b"], kinds, heads=2, concat=False, v2=True),
]


@pytest.mark.covering(1)
@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("make", MAKERS)
def test_gradients(make, weights, quick):
    """By numerical derivatives, quickly along one random direction, or for each number."""
    torch.manual_seed(1)
    block, x = typed_block(weights=weights), inputs(3, torch.float64)
    layer = make(list(block.relations)).double()
    names = [name for name, _ in layer.named_parameters()]

    def run(a, b, *parameters):
        out = functional_call(layer, dict(zip(names, parameters, strict=True)), (block, {"a": a, "b": b}))
        return out["a"], out["b"]

    given = x["a"], x["b"], *(value.detach().requires_grad_() for value in layer.parameters())
    assert gradcheck(run, given, fast_mode=quick)


@pytest.mark.parametrize("make", MAKERS)
def test_absent_types_are_left_out(make):
    block = typed_block()
    layer = make(list(block.relations))
    only = Block.of_relations({("b", "s", "a"): block.relations["b", "s", "a"]}, {"a": 4, "b": 7}, {"a": 4})
    out = layer(only, inputs(3))
    assert {name: len(part) for name, part in out.items()} == {"a": 4}
    bare = Block.of_relations({}, {"b": 3}, {"a": 0, "b": 3})
    assert {name: len(part) for name, part in layer(bare, {"b": rows(3, 3)}).items()} == {"b": 3}


def test_blocks_that_do_not_fit_are_refused():
    block, x = typed_block(), inputs()
    with refused("mismatched-inputs 3 b"):
        RGCNLayer(6, 4, ["a", "b"], list(block.relations))(block, {"a": x["a"]})
    with refused("mismatched-inputs"):
        RGCNLayer(6, 4, ["a", "b"], list(block.relations)[1:])(block, x)
    block.dst_counts["a"] = 3
    with refused("shape-mismatch"):
        RGCNLayer(6, 4, ["a", "b"], list(block.relations))(block, x)


def test_blocks_of_a_constant_sparse_input():
    """Features that never change are read by the columns that they have."""
    x = torch.zeros(9, 60)
    x[torch.arange(9), torch.arange(0, 45, 5)] = 1.0
    block = Block.of_relations({("v", "r", "v"): random_block(9, 5, 12)}, {"v": 9}, {"v": 5})
    layer = RGCNLayer(60, 4, ["v"], list(block.relations), blocks=2)
    expected = layer(block, {"v": x})["v"]
    with constant_input({}, [x]):
        torch.testing.assert_close(layer(block, {"v": x})["v"], expected)


@pytest.mark.parametrize("chosen", [{"blocks": 4}, {"blocks": 2, "bases": 2}])
def test_widths_that_blocks_do_not_divide_are_refused(chosen):
    with refused("unsupported-combination" if "bases" in chosen else "shape-mismatch 6 4"):
        RGCNLayer(6, 4, ["a"], [("a", "r", "a")], **chosen)
