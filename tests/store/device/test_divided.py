"""Rows that come along two paths at once against indexing on the host."""

import numpy as np
import pytest
import torch

from penstock.sampling.device.streams import stream_maker
from penstock.store.device.copies import page_locked
from penstock.store.device.divided import DividedTable
from penstock.store.device.host_paths import FastestDivision, FixedDivision, HostPaths
from penstock.store.device.tables import CachedTable, PinnedTable
from penstock.store.rows import shared_gather
from refusals import refused

pytestmark = pytest.mark.gpu

ROWS, CHUNK = 400, 16
DIVISIONS = {"gathered": 0.0, "both": 0.4, "pinned": 1.0, "measured": None}


def divided(values, device, division, cached=None):
    pinned = page_locked(tuple(values.shape), values.dtype, device, lambda room: room.copy_(values))
    below = PinnedTable(pinned, device) if cached is None else CachedTable(pinned, torch.as_tensor(cached), device)
    share = DIVISIONS[division]
    policy = FastestDivision() if share is None else FixedDivision(share)
    paths = HostPaths(device, 2, policy, stream_maker(device))
    table = DividedTable(below, paths, CHUNK * values[0].nbytes)
    assert table.rows.chunk_rows == CHUNK
    return table


def numbers(dtype, *shape):
    return torch.arange(1, 1 + int(np.prod(shape))).remainder(127).add(1).view(shape).to(dtype)


@pytest.mark.covering(1)
@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("cached", [None, range(0, ROWS, 3)], ids=["plain", "cached"])
@pytest.mark.parametrize("id_type", [torch.int32, torch.int64])
def test_every_division_delivers_the_same_bits(device, division, cached, id_type):
    values = numbers(torch.float16, ROWS, 12)
    table = divided(values, device, division, cached)
    rng = np.random.default_rng(0)
    wanted = {"cache": 0, "cold": 0}
    for size in (300, 5, 17, 300, 1):
        ids = torch.from_numpy(rng.integers(-1, ROWS, size)).to(id_type)
        expected = values[ids.long().clamp(min=0)].float()
        expected[ids < 0] = 0
        out = torch.full((size, 12), 9.0, device=device)
        assert torch.equal(table.gather(ids.to(device), out).cpu(), expected)
        near = sum(int(row) in (cached or ()) for row in ids)
        wanted["cache"] += near
        wanted["cold"] += int((ids >= 0).sum()) - near
    if device.type == "cuda":
        torch.cuda.synchronize()
    use = table.paths.use()
    came = {name: use[name] for name in ("pinned", "gathered") if name in use}
    assert sum(each.rows for each in came.values()) == wanted["cold"]
    assert sum(each.bytes for each in came.values()) == wanted["cold"] * 24
    assert all(each.seconds > 0 for each in came.values())
    assert {"gathered": "pinned" not in came, "pinned": "gathered" not in came}.get(division, len(came) == 2)
    if cached is not None:
        assert table.below.hits_and_reads() == (wanted["cache"], wanted["cache"] + wanted["cold"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.uint8])
def test_rows_of_every_type_and_shape(device, dtype):
    for shape in ((ROWS,), (ROWS, 5), (ROWS, 2, 3)):
        values = numbers(dtype, *shape)
        ids = torch.from_numpy(np.random.default_rng(1).integers(0, ROWS, 100))
        found = divided(values, device, "both").gather(ids.to(device))
        assert found.dtype == dtype and torch.equal(found.cpu(), values[ids])


def test_some_columns_counts_and_places_are_read_by_the_device_alone(device):
    values = numbers(torch.float32, ROWS, 8)
    table = divided(values, device, "both")
    ids = torch.tensor([3, 399, 7], device=device)
    assert torch.equal(table.gather(ids, span=(2, 5)).cpu(), values[[3, 399, 7], 2:5])
    count = torch.tensor([1], dtype=torch.int32, device=device)
    assert not table.gather(ids, count=count)[1:].any()
    assert table.gather(ids[:0]).shape == (0, 8)
    with refused("shape-mismatch"):
        table.gather(ids, torch.empty(2, 8, device=device))
    assert table.paths.use() == {}


def test_a_reading_that_is_abandoned_leaves_nothing_under_way(device):
    values = numbers(torch.float32, ROWS, 8)
    table = divided(values, device, "measured")
    ids = torch.arange(300, dtype=torch.int32, device=device)
    with table.reading(300, torch.int32) as reading:
        reading.list(ids)
        reading.fetch(torch.cuda.current_stream() if device.type == "cuda" else None)
        reading.begin(ids, torch.empty(300, 8, device=device))
        reading.abandon()
    if device.type == "cuda":
        torch.cuda.synchronize()
    assert "gathered" not in table.paths.use()
    assert torch.equal(table.gather(ids).cpu(), values[:300])


def test_threads_that_take_turns_gather_every_row_once():
    table = np.random.default_rng(0).random((500, 6))
    ids, out = np.random.default_rng(1).integers(0, 500, 333), np.zeros((333, 6))
    gather = shared_gather(table, ids, out, 50)
    gather()
    np.testing.assert_array_equal(out, table[ids])
    out[:] = 0
    gather()
    assert not out.any()
    for some in (out, out[:, :0]):
        with refused("id-out-of-range"):
            shared_gather(table[:, : some.shape[1]].copy(), ids + 400, some.copy(), 50)()
