"""Learnable rows on a device: the steps of the host's table, and states that either takes from the other."""

import numpy as np
import pytest
import torch

from penstock.store.device.embedding import DeviceEmbeddingTable
from penstock.store.embedding import EmbeddingTable
from refusals import refused

pytestmark = pytest.mark.gpu
STEPS = [[0, 3, 5], [3, 4], [0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [5]]


def tables(optimiser, device):
    host = EmbeddingTable("t", 6, 4, optimiser, 0.1, seed=1)
    return host, DeviceEmbeddingTable(EmbeddingTable("t", 6, 4, optimiser, 0.1, seed=1), device)


@pytest.mark.parametrize("optimiser", ["adam", "adagrad"])
def test_steps_equal_those_on_the_host(optimiser, device):
    host, there = tables(optimiser, device)
    for number, ids in enumerate(STEPS):
        gradient = (number - 1.5) * np.arange(1, 4 * len(ids) + 1, dtype=np.float32).reshape(len(ids), 4)
        ids = np.array(ids)
        for given in (ids, torch.from_numpy(ids).to(device)):
            np.testing.assert_allclose(there.rows_on(given).cpu().numpy(), host.pull(ids), rtol=1e-5, atol=1e-6)
        host.push(ids, gradient)
        there.learn(ids, torch.from_numpy(gradient).to(device))
    np.testing.assert_allclose(there.rows, host.rows, rtol=1e-5, atol=1e-6)
    assert there.size == host.size == 24 and there.bytes == 4 * 24 * (1 + len(host.moments))


@pytest.mark.parametrize("optimiser", ["adam", "adagrad"])
def test_a_state_goes_on_where_it_was(optimiser, device):
    host, there = tables(optimiser, device)
    ids, gradient = np.array([1, 4]), np.ones((2, 4), np.float32)
    there.push(ids, gradient)
    host.restore({name: np.copy(values) for name, values in there.state().items()})
    again = DeviceEmbeddingTable(EmbeddingTable("t", 6, 4, optimiser, 0.1, seed=2), device)
    again.restore(there.state())
    for table in (host, there, again):
        table.push(ids, gradient)
    assert np.array_equal(there.rows, again.rows) and there.steps == again.steps == host.steps == 2
    np.testing.assert_allclose(there.pull(ids), host.pull(ids), rtol=1e-5, atol=1e-6)
    with refused("mismatched-inputs"):
        there.restore({"steps": 1, "rows": np.zeros((6, 4), np.float32)})
    with refused("mismatched-inputs"):
        there.restore({name: np.zeros((1, 4), np.float32) for name in there.state()} | {"steps": 1})
