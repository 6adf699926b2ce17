"""Steps on rows of a table by one kernel: those of the host's table, however often a row was read."""

import numpy as np
import pytest
import torch

from penstock.store.device.embedding import DeviceEmbeddingTable
from penstock.store.embedding import EmbeddingTable

pytestmark = pytest.mark.gpu


@pytest.mark.covering(1)
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("optimiser", ["adam", "adagrad"])
@pytest.mark.parametrize("width", [3, 1030])
def test_gradients_of_equal_rows_are_added_up(device, optimiser, dense, width):
    from penstock.store.device.kernels import launch_row_steps

    count, rng = 9, np.random.default_rng(0)
    host = EmbeddingTable("t", count, width, optimiser, 0.1, seed=1)
    there = DeviceEmbeddingTable(EmbeddingTable("t", count, width, optimiser, 0.1, seed=1), device)
    rates = torch.from_numpy(there.rates(3)).to(device)
    for step in range(3):
        # Row 9 is beyond the table: what was read there does not count.
        ids = rng.integers(0, count + 1, 14)
        given = rng.normal(size=(14, width)).astype(np.float32)
        total = np.zeros((count + 1, width), np.float32)
        np.add.at(total, ids, given)
        every = rng.normal(size=(count, width)).astype(np.float32) if dense else None
        read = ids if every is None else np.concatenate([np.arange(count), ids])
        if every is not None:
            total[:count] += every
        touched = np.unique(read[read < count])
        host.push(touched, total[touched])
        order = np.argsort(read, kind="stable")
        launch_row_steps(
            there.on_device,
            torch.from_numpy(read[order]).to(device),
            torch.from_numpy(order).to(device),
            None if every is None else torch.from_numpy(every).to(device),
            torch.from_numpy(given).to(device),
            rates[step : step + 1],
        )
    np.testing.assert_allclose(there.rows, host.rows, rtol=1e-4, atol=1e-5)
