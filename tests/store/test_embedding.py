import numpy as np
import pytest
import torch

from penstock.errors import PenstockError
from penstock.store import EmbeddingTable

STEPS = [([0, 3, 5], 1.0), ([3, 4], -2.0), ([0, 3], 0.5), ([5], 3.0)]


@pytest.mark.parametrize("optimiser", ["adam", "adagrad"])
def test_steps_equal_torchs_sparse_optimisers(optimiser):
    table = EmbeddingTable("t", 6, 4, optimiser, 0.1, seed=1)
    weight = torch.nn.Parameter(torch.from_numpy(table.rows.copy()))
    theirs = {"adam": torch.optim.SparseAdam, "adagrad": torch.optim.Adagrad}[optimiser]([weight], lr=0.1)
    for ids, scale in STEPS:
        gradient = scale * np.arange(1, 4 * len(ids) + 1, dtype=np.float32).reshape(len(ids), 4)
        table.push(np.array(ids), gradient)
        with torch.sparse.check_sparse_tensor_invariants():
            weight.grad = torch.sparse_coo_tensor([ids], torch.from_numpy(gradient), (6, 4))
            theirs.step()
    np.testing.assert_allclose(table.rows, weight.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_rows_depend_on_seed_and_name_alone_and_state_comes_back():
    table, twin = (EmbeddingTable("t", 9, 5, "adam", 0.1, seed=1) for _ in range(2))
    np.testing.assert_array_equal(table.rows, twin.rows)
    assert np.abs(table.rows).max() <= 5**-0.5
    assert not np.array_equal(table.rows, EmbeddingTable("u", 9, 5, "adam", 0.1, seed=1).rows)
    table.push(np.array([1, 2]), np.ones((2, 5)))
    twin.restore({key: np.array(value) if key != "steps" else value for key, value in table.state().items()})
    for each in (table, twin):
        each.push(np.array([2, 7]), np.ones((2, 5)))
    np.testing.assert_array_equal(table.rows, twin.rows)


def test_what_does_not_fit_is_refused():
    table = EmbeddingTable("t", 9, 5, "adam", 0.1, seed=1)
    with pytest.raises(PenstockError, match="another shape"):
        table.restore(EmbeddingTable("t", 8, 5, "adam", 0.1, seed=1).state())
    with pytest.raises(PenstockError, match="lacks"):
        table.restore(EmbeddingTable("t", 9, 5, "adagrad", 0.1, seed=1).state())
    with pytest.raises(PenstockError, match="do not fit"):
        table.push(np.array([1]), np.ones((1, 4)))
    with pytest.raises(PenstockError, match="adam or adagrad"):
        EmbeddingTable("t", 9, 5, "sgd", 0.1, seed=1)
