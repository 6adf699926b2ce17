import numpy as np
import pytest
import torch

from penstock.store.embedding import EmbeddingTable
from refusals import refused

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


@pytest.mark.parametrize("optimiser", ["adam", "adagrad"])
def test_a_decay_moves_all_rows_as_torchs_dense_optimisers_do(optimiser):
    """Rows that a step does not touch, and rows that no step touches, are decayed in it all the same."""
    table = EmbeddingTable("t", 7, 4, optimiser, 0.1, seed=1, decay=0.3)
    begun = table.rows.copy()
    weight = torch.nn.Parameter(torch.from_numpy(table.rows.copy()))
    chosen = {"adam": torch.optim.Adam, "adagrad": torch.optim.Adagrad}[optimiser]
    theirs = chosen([weight], lr=0.1, weight_decay=0.3)
    for ids, scale in STEPS * 5:
        gradient = scale * np.arange(1, 4 * len(ids) + 1, dtype=np.float32).reshape(len(ids), 4)
        table.push(np.array(ids), gradient)
        weight.grad = torch.zeros(7, 4)
        weight.grad[ids] = torch.from_numpy(gradient)
        theirs.step()
    # torch's Adam adds epsilon to the corrected root of the second moment, SparseAdam and this one to the plain root.
    np.testing.assert_allclose(table.pull(np.arange(7)), weight.detach().numpy(), rtol=1e-3, atol=1e-4)
    assert np.abs(table.pull(np.array([6]))).max() < np.abs(begun[6]).max()


def test_dense_adam_is_torchs_adam():
    """Rows that a batch does not read go on by their moments; one is read again after 700 steps, one never was."""
    table = EmbeddingTable("t", 8, 4, "dense-adam", 0.1, seed=1)
    begun = table.rows.copy()
    weight = torch.nn.Parameter(torch.from_numpy(begun.copy()))
    theirs = torch.optim.Adam([weight], lr=0.1)
    for number, (ids, scale) in enumerate([*STEPS * 5, *[([0], 0.1)] * 700, *STEPS]):
        gradient = scale * np.arange(1, 4 * len(ids) + 1, dtype=np.float32).reshape(len(ids), 4)
        table.push(np.array(ids), gradient)
        weight.grad = torch.zeros(8, 4)
        weight.grad[ids] = torch.from_numpy(gradient)
        theirs.step()
        if number in (2, 19, 40):
            np.testing.assert_allclose(table.pull(np.arange(8)), weight.detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(table.pull(np.arange(8)), weight.detach().numpy(), rtol=1e-4, atol=1e-5)
    for ours, name in zip(table.moments, ("exp_avg", "exp_avg_sq"), strict=True):
        np.testing.assert_allclose(ours, theirs.state[weight][name].numpy(), rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(table.pull(np.array([7])), begun[[7]])


def test_steps_of_rows_that_were_not_read_have_the_rate_of_their_time():
    table = EmbeddingTable("t", 3, 2, "dense-adam", 0.1, seed=1)
    weight = torch.nn.Parameter(torch.from_numpy(table.rows.copy()))
    theirs = torch.optim.Adam([weight], lr=0.1)
    for number in range(12):
        table.push(np.array([number % 2]), np.ones((1, 2), np.float32))
        weight.grad = torch.zeros(3, 2)
        weight.grad[number % 2] = 1.0
        theirs.step()
        if number == 5:
            table.set_rate(0.001)
            theirs.param_groups[0]["lr"] = 0.001
    np.testing.assert_allclose(table.pull(np.arange(3)), weight.detach().numpy(), rtol=1e-4, atol=1e-5)


EVERY_ROW = [("adam", 0.3), ("adagrad", 0.3), ("dense-adam", 0.0)]


@pytest.mark.parametrize("optimiser, decay", EVERY_ROW)
def test_when_rows_are_read_or_kept_changes_no_bit(optimiser, decay):
    """One table is read all the time and goes on from a stored state, the other only at its end."""
    read, left = (EmbeddingTable("t", 7, 4, optimiser, 0.1, seed=1, decay=decay) for _ in range(2))
    for number, (ids, scale) in enumerate([*STEPS * 5, *[([2], 1.0)] * 300, *STEPS]):
        gradient = np.full((len(ids), 4), scale, np.float32)
        read.push(np.array(ids), gradient)
        left.push(np.array(ids), gradient)
        read.pull(np.array([number % 7, 1, 1]))
        if number == 9:
            state = {key: value if key == "steps" else np.array(value) for key, value in read.state().items()}
            read = EmbeddingTable("t", 7, 4, optimiser, 0.1, seed=2, decay=decay)
            read.restore(state)
    for ours, theirs in zip(read.state().values(), left.state().values(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


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
    with refused("mismatched-inputs"):
        table.restore(EmbeddingTable("t", 8, 5, "adam", 0.1, seed=1).state())
    with refused("mismatched-inputs"):
        table.restore(EmbeddingTable("t", 9, 5, "adagrad", 0.1, seed=1).state())
    with refused("shape-mismatch"):
        table.push(np.array([1]), np.ones((1, 4)))
    with refused("unknown-name"):
        EmbeddingTable("t", 9, 5, "sgd", 0.1, seed=1)
