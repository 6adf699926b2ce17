"""Bins of workers that read the level below where it stands: the losses and gradients of bins that copy rows."""

import numpy as np
import pytest
import torch
from test_whole_exact import EPOCHS, graph_for, in_float64

from penstock.nn.aggregation import add_to_rows
from penstock.sampling.block import Block
from penstock.train.whole import levels
from penstock.train.whole.levels import LevelGradients, RowsInPlace
from whole_threads import train_in_threads

WHOLE = {"sampler": "whole", "layers": 3, "hidden": 16, "dropout": 0.2, "lr": 0.01, "threads": 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "gcn", "norm": "batch"},
        *(
            pytest.param(fields, marks=pytest.mark.long)
            for fields in (
                {"model": "sage"},
                {"model": "gcn"},
                {"model": "sage", "aggregate": "sum"},
                {"model": "gin"},
                {"model": "gcn", "exchange": "boundary", "boundary_share": 0.5},
                {"model": "sage", "exchange": "replicate"},
            )
        ),
    ],
    ids=str,
)
def test_losses_of_bins_that_copy_rows(monkeypatch, fields):
    graph, made = graph_for(fields["model"]), []
    # Statistics of batches are kept in float32.
    exact = {} if "norm" in fields else {"prepare": in_float64}
    real = levels.RowsInPlace

    def counted(*given):
        made.append(real(*given))
        return made[-1]

    def losses(in_place):
        monkeypatch.setattr(levels, "is_cheaper_in_place", lambda *given: in_place)
        workers, _ = train_in_threads(graph, 3, EPOCHS, **exact, bins=3, **WHOLE, **fields)
        return workers[0][0]

    monkeypatch.setattr(levels, "RowsInPlace", counted)
    copied = losses(False)
    assert not made
    np.testing.assert_allclose(losses(True), copied, rtol=1e-9 if exact else 1e-4)
    assert len(made) == 3 * 2 * 3  # workers, layers behind the first, bins


@pytest.mark.parametrize("what", ["normalised", "mean", "sum"])
def test_gradients_are_those_of_autograd(what):
    block = Block(np.array([0, 2, 3, 3]), np.array([3, 1, 4], np.int32), 5, totals=np.array([2, 1, 0, 4, 1]))
    places = np.array([6, 2, 4, 0, 3])
    level = torch.rand(8, 3, dtype=torch.float64, requires_grad=True)
    rows = RowsInPlace(what, block, places, torch.float64)
    read = rows.aggregated(level.detach())
    expected = _aggregated(what, block, level[torch.from_numpy(places)])
    torch.testing.assert_close(read.neighbours, expected)

    given = torch.rand(3, 3, dtype=torch.float64)
    expected.backward(given)
    read.neighbours.backward(given)
    gradients = LevelGradients({"v": 8}, torch.device("cpu"))
    rows.add_gradients("v", read, gradients)
    torch.testing.assert_close(gradients.of("v", slice(None)), level.grad)


def test_sums_are_added_to_what_rows_have():
    out = torch.ones(4, 2)
    lists = np.array([3, 1]), np.array([0, 5, 6]), np.array([0, 1, 0, 1, 0, 1], np.int32), np.ones(6, np.float32)
    add_to_rows(*lists, torch.tensor([[1.0, 2.0], [10.0, 20.0]]), out)
    assert out.tolist() == [[1, 1], [11, 21], [1, 1], [24, 47]]


def _aggregated(what, block, x):
    """[num_dst, width] of a block's source rows, densely."""
    matrix = torch.zeros(block.num_dst, block.num_src, dtype=x.dtype)
    for to, source in zip(block.destinations().tolist(), block.indices.tolist(), strict=True):
        matrix[to, source] = 1
    if what == "normalised":
        roots = 1 / torch.sqrt(torch.from_numpy(block.totals) + 1.0)
        matrix = (matrix + torch.eye(*matrix.shape, dtype=x.dtype)) * roots * roots[: block.num_dst, None]
    elif what == "mean":
        matrix = matrix / matrix.sum(dim=1, keepdim=True).clamp(min=1)
    return matrix @ x
