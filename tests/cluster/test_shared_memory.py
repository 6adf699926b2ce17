"""Memory that a store keeps for all workers of its machine."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from penstock.cluster.tasks.store import serve_shared_memory
from penstock.cluster.worker.device_placement import _memory_of_machine
from penstock.store.device.copies import pinned_already, pinned_once, to_pinned
from penstock.wire.message import Message
from refusals import refused


class Store:
    """The endpoint of a store, and a channel to it."""

    name = "store-m0"

    def __init__(self):
        self._handlers = {}
        serve_shared_memory(SimpleNamespace(endpoint=self))

    def serve(self, kind, handler):
        """Register a handler."""
        self._handlers[kind] = handler

    def call(self, message):
        """Answer a message."""
        return self._handlers[message.kind](message, "worker-0")

    def channel(self, name, flow, priority):
        """The channel to this store."""
        assert name == self.name
        return self


def memory_of(store, rank):
    """The memory of one of three workers, of which two are on the machine."""
    workers = [SimpleNamespace(rank=0, machine="m1"), *(SimpleNamespace(rank=each, machine="m0") for each in (1, 2))]
    setup = SimpleNamespace(task=workers[rank], layout=SimpleNamespace(of_kind=lambda kind: workers))
    return _memory_of_machine(SimpleNamespace(setup=setup, endpoint=store))


def test_workers_of_a_machine_read_one_copy():
    store, rows = Store(), np.random.default_rng(0).normal(size=(1000, 8))
    tables = []
    for rank in (1, 2):
        memory = memory_of(store, rank)
        assert (memory.rank, memory.processes) == (rank - 1, 2)
        with pinned_once(memory):
            assert (pinned_already() > 0) == (rank == 2)
            tables.append(to_pinned(rows, torch.device("cpu")))
    tables[0][5] = 3.0
    assert (tables[1][5] == 3.0).all() and np.array_equal(tables[1][6:].numpy(), rows[6:])


def test_what_a_store_refuses():
    store = Store()
    path = store.call(Message("memory", {"name": "x", "bytes": 100})).body["path"]
    assert Path(path).stat().st_size == 100
    for body, said in (
        ({"name": "x", "bytes": 200}, "malformed-message 100 200"),
        ({"name": "y", "bytes": 0}, "malformed-message"),
        ({"name": "y", "bytes": 1 << 63}, "out-of-memory shared memory"),
        ({"bytes": 5}, "malformed-message"),
    ):
        with refused(said):
            store.call(Message("memory", body))


def test_memory_that_cannot_be_mapped(monkeypatch):
    store = Store()
    monkeypatch.setattr(store, "call", lambda message: Message("memory", {"path": "/proc/0/fd/0"}))
    with refused("not-permitted store-m0 placement"):
        memory_of(store, 1).mapped("x", 10)


@pytest.mark.parametrize("name", ["features", "lists"])
def test_memory_is_zeros_at_first(name):
    assert not memory_of(Store(), 1).mapped(name, 1 << 16).any()
