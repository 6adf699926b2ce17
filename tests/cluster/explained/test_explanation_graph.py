"""The small graph that is explained, for every kind of model; masks find the rows and columns that matter."""

import numpy as np
import pytest
import torch

from penstock.cluster.worker.explained.explanation_graph import PooledRows, explained_masks, star_blocks
from penstock.explain import MaskOptions
from penstock.nn import ModelOptions, build_model

KIND = ("node", "to", "node")
TYPED = [("a", "r", "a"), ("b", "s", "a"), ("a", "t", "b")]


def rows_of(count, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return PooledRows(torch.randn(width, generator=generator), torch.randn(count, width, generator=generator))


def test_blocks_join_the_pooled_vertex_with_all_others():
    first, last = star_blocks({"node": 3}, [KIND], "node", 2)
    assert first.indptr.tolist() == [0, 4, 5, 6, 7] and first.indices.tolist() == [0, 1, 2, 3, 0, 0, 0]
    assert last.indptr.tolist() == [0, 4] and last.num_src == 4
    first, last = star_blocks({"a": 2, "b": 1}, TYPED, "a", 2)
    assert first.relations["b", "s", "a"].indices.tolist() == [0, 1, 0, 0]
    assert last.dst_counts == {"a": 1, "b": 0} and list(last.relations) == TYPED[:2]


@pytest.mark.parametrize("model", ["sage", "gcn", "gat"])
def test_models_of_one_type(model):
    torch.manual_seed(0)
    built = build_model(ModelOptions(model=model, hidden=8, layers=2), 5, 3).eval()
    again = []
    for _ in range(2):
        rows = {"node": rows_of(6, 5)}
        found = explained_masks(
            lambda blocks, x: built(blocks, x["node"]), rows, [KIND], "node", 2, "classes", MaskOptions(steps=5), 7
        )["node"]
        again.append(found)
    assert found.rows.shape == (6,) and found.columns.shape == (5,)
    assert ((found.rows > 0) & (found.rows < 1)).all()
    np.testing.assert_array_equal(again[0].rows, again[1].rows)
    np.testing.assert_array_equal(again[0].columns, again[1].columns)


def test_several_types():
    torch.manual_seed(0)
    built = build_model(ModelOptions(model="rgcn", hidden=8, layers=2), {"a": 5, "b": 4}, 3, TYPED, "a").eval()
    rows = {"a": rows_of(3, 5), "b": rows_of(2, 4, 1)}
    found = explained_masks(
        lambda blocks, x: built(blocks, x)["a"], rows, TYPED, "a", 2, "classes", MaskOptions(steps=4), 1
    )
    assert {name: (len(each.rows), len(each.columns)) for name, each in found.items()} == {"a": (3, 5), "b": (2, 4)}


def test_columns_that_decide_get_larger_masks():
    """A model that reads the first two of six columns most, the next two hardly, and the others not at all."""
    factors = torch.tensor([3.0, 3.0, 0.01, 0.01, 0.0, 0.0])

    def encode(blocks, x):
        total = x["node"].mean(0) @ factors
        return torch.stack([total, -total]).unsqueeze(0)

    rows = {"node": PooledRows(torch.zeros(6), torch.ones(10, 6))}
    beats = []
    found = explained_masks(
        encode, rows, [KIND], "node", 1, "classes", MaskOptions(steps=60), 0, lambda: beats.append(1)
    )["node"]
    assert found.columns[:2].min() > found.columns[2:4].max() > 0
    assert (found.columns[4:] == 0).all()
    assert len(beats) == 61
