"""Typed models: by type in and out, a target, jumping knowledge, absent types, one type of many relations."""

import numpy as np
import pytest
import torch
from random_blocks import random_block, rows, typed_block

from penstock import EdgeSet, Graph, NodeSet
from penstock.nn import HGT, RGCN, GraphSAGE, ModelOptions, TypedModel, build_model, model_options
from penstock.sampling import Block
from refusals import refused

WIDTHS = {"a": 5, "b": 3}
KINDS = [("a", "r", "a"), ("b", "s", "a"), ("a", "t", "b"), ("b", "u", "b")]


def two_blocks():
    inner = Block.of_relations(
        {("a", "r", "a"): random_block(4, 2, 3, seed=5), ("b", "s", "a"): random_block(3, 2, 4, seed=6)},
        {"a": 4, "b": 3},
        {"a": 2},
    )
    return [typed_block(), inner]


def inputs():
    return {"a": rows(9, 5, 1), "b": rows(7, 3, 2)}


def options(**chosen):
    return ModelOptions(**{"model": "rgcn", "hidden": 8, "layers": 2, "heads": 2, **chosen})


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", ["rgcn", "sage", "gat", "gatv2", "hgt", "mlp"])
@pytest.mark.parametrize("jump", ["none", "cat", "max"])
@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
def test_every_kind(name, jump, norm):
    torch.manual_seed(0)
    chosen = options(model=name, jump=jump, norm=norm, residual=True)
    model = build_model(chosen, WIDTHS, 4, KINDS, target_type="a")
    out = model(two_blocks(), inputs())
    assert {kind: tuple(part.shape) for kind, part in out.items()} == {"a": (2, 4)}
    out["a"].square().sum().backward()
    assert all(value.grad is not None for value in model.convolutions[-1].parameters())
    free = build_model(chosen, WIDTHS, 4, KINDS)
    every = free([typed_block(), typed_block_of_the_first_rows()], inputs())
    assert {kind: tuple(part.shape) for kind, part in every.items()} == {"a": (2, 4), "b": (1, 4)}


def typed_block_of_the_first_rows():
    relations = {("a", "r", "a"): random_block(4, 2, 3, seed=5), ("a", "t", "b"): random_block(4, 1, 2, seed=6)}
    return Block.of_relations(relations, {"a": 4, "b": 3}, {"a": 2, "b": 1})


def test_the_steps_give_the_forward_pass():
    model = build_model(options(jump="cat", norm="layer"), WIDTHS, 4, KINDS).eval()
    blocks, x = two_blocks(), inputs()
    first = model.layer(0, blocks[0], model.prepare(x))
    assert {kind: len(part) for kind, part in first.items()} == {"a": 4, "b": 3}
    second = model.layer(1, blocks[1], first)
    joined = model.join([{"a": first["a"][:2]}, second])
    torch.testing.assert_close(joined, model(blocks, x))


def test_types_that_a_batch_lacks_are_left_out():
    model = build_model(options(norm="batch"), WIDTHS, 4, KINDS)
    block = Block.of_relations({("a", "r", "a"): random_block(4, 2, 3)}, {"a": 4}, {"a": 2})
    outer = Block.of_relations({("a", "r", "a"): random_block(9, 4, 6)}, {"a": 9, "b": 0}, {"a": 4, "b": 0})
    assert set(model([outer, block], {"a": rows(9, 5), "b": rows(0, 3)})) == {"a"}
    assert set(model([outer, block], {"a": rows(9, 5)})) == {"a"}


@pytest.mark.parametrize("decomposition", [{"bases": 2}, {"blocks": 4}])
def test_weights_of_relations_are_decomposed(decomposition):
    """A layer as wide as the classes, which no blocks divide, has whole matrices."""
    model = build_model(options(**decomposition), WIDTHS, 3, KINDS, target_type="a")
    sizes = {"bases": [(2, 8, 8), (2, 8, 3)], "blocks": [(4, 4, 2, 2), (2, 8, 3)]}
    assert [tuple(layer.weight.shape) for layer in model.convolutions] == sizes[next(iter(decomposition))]
    model(two_blocks(), inputs())["a"].square().sum().backward()
    assert all(value.grad is not None for value in model.convolutions.parameters())


@pytest.mark.parametrize(
    "chosen, said",
    [
        ({"model": "sage", "bases": 2}, "invalid-value bases sage"),
        ({"model": "gat", "blocks": 2}, "invalid-value blocks gat"),
        ({"bases": 2, "blocks": 2}, "invalid-value bases blocks"),
        ({"blocks": 3}, "invalid-value blocks 8 3"),
    ],
)
def test_decompositions_that_do_not_fit_are_refused(chosen, said):
    with refused(said):
        model_options(**{"model": "rgcn", "hidden": 8, **chosen})


@pytest.mark.parametrize("name", ["rgcn", "gat", "hgt"])
def test_a_target_that_reads_nothing_has_its_own_rows(name):
    model = build_model(options(model=name), WIDTHS, 4, [("b", "u", "b")], target_type="a")
    outer, inner = Block.of_relations({}, {"a": 3}, {"a": 2}), Block.of_relations({}, {"a": 2}, {"a": 1})
    assert model([outer, inner], {"a": rows(3, 5)})["a"].shape == (1, 4)


def test_one_node_type_of_many_relations_is_not_projected():
    kinds = [("v", f"r{i}", "v") for i in range(90)]
    model = build_model(options(bases=4), {"v": 6}, 3, kinds)
    assert not model.projections
    outer = Block.of_relations(
        {kind: random_block(9, 5, i % 5, seed=i) for i, kind in enumerate(kinds)}, {"v": 9}, {"v": 5}
    )
    inner = Block.of_relations({kinds[7]: random_block(5, 2, 4)}, {"v": 5}, {"v": 2})
    out = model([outer, inner], {"v": rows(9, 6)})
    assert out["v"].shape == (2, 3)
    out["v"].sum().backward()
    assert all(value.grad is not None for value in model.parameters())


@pytest.mark.parametrize("kind", [RGCN, HGT])
def test_plain_blocks_are_one_relation(kind):
    torch.manual_seed(0)
    model = kind(6, 4, hidden=8, layers=2).eval()
    blocks, x = [random_block(9, 5, 14), random_block(5, 3, 7, seed=1)], rows(9, 6)
    typed = [
        Block.of_relations({("node", "to", "node"): block}, {"node": block.num_src}, {"node": block.num_dst})
        for block in blocks
    ]
    torch.testing.assert_close(model(blocks, x), model(typed, {"node": x})["node"])


def graph():
    def lists(count):
        return EdgeSet(np.zeros(count + 1, np.int64), np.zeros(0, np.int32))

    paper = NodeSet(4, {"x": np.zeros((4, 5), np.float32), "y": np.array([0, 1, 2, -1])})
    return Graph({"paper": paper, "author": NodeSet(3)}, {("author", "writes", "paper"): lists(4)}, "two")


def test_widths_come_from_the_graph():
    model = RGCN(graph(), hidden=8, embedding=16)
    assert [layer.in_features for layer in model.projections] == [5, 16]
    block = Block.of_relations(
        {("author", "writes", "paper"): random_block(3, 2, 4)}, {"paper": 2, "author": 3}, {"paper": 2}
    )
    out = model.layer(1, block, model.prepare({"paper": rows(2, 5), "author": rows(3, 16)}))
    assert out["paper"].shape == (2, 3)
    assert set(RGCN(graph(), out=7, hidden=8).layer(1, block, {"paper": rows(2, 8), "author": rows(3, 8)})) == {"paper"}


def test_bad_requests_are_one_sentence():
    with refused("unsupported-combination"):
        GraphSAGE(graph())
    with refused("unknown-name c"):
        TypedModel(options(), WIDTHS, KINDS, 4, "c")
    with refused("unsupported-combination gcn"):
        build_model(options(model="gcn"), WIDTHS, 4, KINDS)
    with refused("option-missing"):
        build_model(options(), WIDTHS, 4)
    model = build_model(options(), WIDTHS, 4, KINDS)
    with refused("wrong-type"):
        model([random_block(), random_block(5, 3, 2)], rows(9, 5))
    with refused("unknown-name z"):
        model(two_blocks(), {"z": rows(2, 2)})
    with refused("option-missing"):
        RGCN(6)
    with refused("option-missing 0 bare"):
        RGCN(Graph({"v": NodeSet(2)}, {}, "bare"))
