"""Attention: equal to dense softmax, its gradients to finite differences, the same on any number of threads."""

import pytest
import torch
from random_blocks import dense, random_block, rows
from torch.autograd import gradcheck
from torch.nn.functional import leaky_relu

from penstock.nn import GATLayer, attend, attend_jointly
from penstock.nn.drop import dropping
from penstock.nn.operator_costs import LayerSizes, shipped_order_costs
from penstock.nn.order import attends_inputs
from penstock.sampling import Block
from refusals import refused


def expected(block, scores, values, heads):
    """Softmax over each row's edges, repeated edges counting as often as they are there."""
    matrix = dense(block)
    out = []
    for h, value in enumerate(values.double().chunk(heads, dim=1)):
        share = matrix * scores[:, :, h].double().exp()
        out.append(share / share.sum(dim=1, keepdim=True).clamp(min=1e-30) @ value)
    return torch.cat(out, dim=1)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("edges", [0, 30])
def test_equal_to_dense_softmax(weights, edges):
    block = random_block(9, 5, edges, weights)
    of_src, of_dst, values = rows(9, 2, 1), rows(5, 2, 2), rows(9, 6, 3)
    scores = leaky_relu(of_src[None] + of_dst[:, None], 0.2)
    torch.testing.assert_close(attend(block, of_src, of_dst, values), expected(block, scores, values, 2).float())
    right, direction = rows(5, 6, 4), rows(2, 3, 5)
    joint = leaky_relu(values[None] + right[:, None], 0.2).view(5, 9, 2, 3)
    torch.testing.assert_close(
        attend_jointly(block, values, right, direction),
        expected(block, (joint * direction).sum(dim=-1), values, 2).float(),
    )


@pytest.mark.covering(1)
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("edges", [0, 20])
@pytest.mark.parametrize("dropping", [False, True])
def test_gradients(weights, edges, dropping):
    block, double = random_block(9, 5, edges, weights), torch.float64
    kept = 2 * rows(edges, 2, 9, grad=False).gt(0) if dropping else None
    of_src, of_dst, values = rows(9, 2, 1, double), rows(5, 2, 2, double), rows(9, 6, 3, double)
    assert gradcheck(lambda *given: attend(block, *given, kept=kept), (of_src, of_dst, values))
    right, direction = rows(5, 6, 4, double), rows(2, 3, 5, double)
    assert gradcheck(lambda *given: attend_jointly(block, *given, kept=kept), (values, right, direction))


def test_dropped_shares_count_for_nothing_and_kept_ones_more():
    block = Block(random_block().indptr, random_block().indices, 9)
    of_src, of_dst, values = rows(9, 1, 1), rows(5, 1, 2), rows(9, 4, 3)
    plain = attend(block, of_src, of_dst, values)
    torch.testing.assert_close(attend(block, of_src, of_dst, values, kept=torch.full((14, 1), 2.0)), 2 * plain)
    assert not attend(block, of_src, of_dst, values, kept=torch.zeros(14, 1)).any()


def test_huge_scores_do_not_overflow():
    block = random_block(9, 5, 30)
    out = attend(block, 1e4 * rows(9, 2, 1), rows(5, 2, 2), rows(9, 6, 3))
    assert out.isfinite().all()


def test_the_same_bits_on_any_number_of_threads():
    shape = random_block(3000, 2000, 30000, seed=3)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            block = Block(shape.indptr, shape.indices, 3000)
            given = rows(3000, 64, 1), rows(2000, 64, 2), rows(4, 16, 3)
            attend_jointly(block, *given).square().sum().backward()
            scores = rows(3000, 4, 4), rows(2000, 4, 5), rows(3000, 64, 6)
            attend(block, *scores).square().sum().backward()
            results.append([tensor.grad.numpy().tobytes() for tensor in given + scores])
    finally:
        torch.set_num_threads(before)
    assert results[0] == results[1] == results[2]


def test_what_cannot_attend_is_refused():
    block = random_block()
    with refused("shape-mismatch 6 4"):
        attend(block, rows(9, 4), rows(5, 4), rows(9, 6))
    with refused("shape-mismatch 5 4"):
        attend(block, rows(9, 2), rows(4, 2), rows(9, 6))


LAYERS = {
    "plain": ({}, False),
    "averaged": ({"concat": False}, False),
    "without self loops": ({"self_loop": False}, False),
    "dropped": ({"dropout": 0.4}, False),
    "two matrices": ({"self_loop": False, "two_sided": True}, True),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("weights", [False, True])
def test_inputs_weighed_before_or_behind_the_product(name, weights):
    """Both orders give the same rows, and gradients of every weight, up to rounding."""
    options, between = LAYERS[name]
    block, x, x_dst = random_block(12, 6, 30, weights), rows(12, 5, 1, torch.float64, False), rows(6, 5, 2).double()
    found = []
    for order in ("aggregate", "transform"):
        torch.manual_seed(0)
        layer = GATLayer(5, 4, 3, order=order, **options).double()
        with dropping(7):
            out = layer(block, x, x_dst.detach() if between else None)
        found.append([out, *torch.autograd.grad(out.square().sum(), list(layer.parameters()))])
    for before, behind in zip(*found, strict=True):
        torch.testing.assert_close(before, behind)


def test_inputs_that_are_learned_are_transformed_first():
    block, x, weight = random_block(12, 6, 30), rows(12, 5), torch.ones(12, 5)
    assert not attends_inputs(block, x, weight, 3, "aggregate")
    assert attends_inputs(block, x.detach(), weight, 3, "aggregate")
    assert not attends_inputs(block, x.detach(), weight, 3, "transform")


def test_sizes_decide_whether_inputs_are_weighed_first():
    """The last hop of a batch has many more sources than destinations; a whole graph with many heads has not."""
    costs = shipped_order_costs()["cpu"]
    assert costs.attends_first(LayerSizes(414_519, 132_874, 664_370, 100, 256, False, True, 4))
    assert not costs.attends_first(LayerSizes(2708, 2708, 10_556, 1433, 64, False, True, 8))
