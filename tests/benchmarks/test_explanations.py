"""BA-shapes as published, and both explainers on the same weights."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.sampling import ALL, BatchKey, NeighbourSampler

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from explanations import BASE, HOUSES, KIND, auc, ba_shapes, compare, pyg_model, trained_model


def test_the_graph_is_the_published_one():
    graph, planted = ba_shapes(0)
    assert graph.num_nodes == BASE + 5 * HOUSES == 700
    assert np.bincount(graph.y).tolist() == [BASE, HOUSES, 2 * HOUSES, 2 * HOUSES]
    assert len(planted) == 2 * 6 * HOUSES
    sources, targets = graph.edges[KIND].edge_index().tolist()
    edges = set(zip(sources, targets, strict=True))
    assert planted <= edges and {(b, a) for a, b in edges} == edges


def test_auc():
    assert auc([0.9, 0.8, 0.1], [True, True, False]) == 1.0
    assert auc([0.5, 0.5], [True, False]) == 0.5
    assert auc([0.1, 0.2, 0.3, 0.4], [True, False, True, False]) == 0.25


def test_both_models_are_one_and_both_are_compared():
    pytest.importorskip("torch_geometric")
    graph, _ = ba_shapes(1)
    model, _ = trained_model(graph, 1, 3)
    edges = torch.from_numpy(graph.edges[KIND].edge_index().astype(np.int64))
    batch = NeighbourSampler(graph, [ALL] * 3, totals=True).sample(np.arange(700), BatchKey(0, 0, 0))
    x = torch.from_numpy(graph.x)
    torch.testing.assert_close(pyg_model(model)(x, edges), model(batch.blocks, x), rtol=1e-4, atol=1e-5)
    found = compare(1, 1, 2, 0.1, 3)
    assert 0 <= found["ours"]["auc"] <= 1 and 0 <= found["pyg"]["auc"] <= 1
