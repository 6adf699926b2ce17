"""The five stages together: batches in order, features in place, buffers used again."""

import threading
import weakref

import numpy as np
import pytest
import torch

from penstock.pipeline import stages
from penstock.pipeline import stages as stage_clock
from penstock.pipeline.batch_rows import BufferPool, HostCarrier
from penstock.pipeline.device import DeviceCarrier
from penstock.pipeline.options import PipelineOptions
from penstock.pipeline.schedule import Schedule
from penstock.pipeline.stages import Loader, StageError
from penstock.sampling import NeighbourSampler
from penstock.store.device.tables import ResidentTable
from penstock.store.source import ArraySource, LocalStore, cached_source, replicated_source
from training_graphs import community_graph, stage_threads

STAGES = ["seeds", "sample", "gather", "transfer", "compute"]


def loader_of(graph, epochs=2, sources=None, label=None, scale=None, carrier=None, **options):
    """A loader over a graph's training vertices."""
    schedule = Schedule(graph.nodes["node"].splits["train"], 16, 0, epochs)
    sampler = NeighbourSampler(graph, [4, 3])

    def labels(batch):
        batch.labels = graph.nodes["node"].y[batch.seeds["node"]]

    return Loader(
        schedule.from_position(),
        lambda planned: sampler.sample(planned.seeds, planned.key),
        carrier
        or HostCarrier({"node": LocalStore.of_graph(graph).source("node/x")} if sources is None else sources, scale),
        label or labels,
        PipelineOptions(**options),
    )


@pytest.mark.parametrize(
    "options", [{}, {"sample_threads": 3, "gather_threads": 2, "sample_depth": 5, "gather_depth": 4}]
)
def test_every_batch_comes_in_order_with_its_own_rows(options):
    graph = community_graph()
    seen = []
    with loader_of(graph, **options) as loader:
        for loaded in loader:
            seen.append(loaded.position)
            batch = loaded.batch
            np.testing.assert_array_equal(batch.features["node"].numpy(), graph.nodes["node"].x[batch.vertices["node"]])
            np.testing.assert_array_equal(batch.labels.numpy(), graph.nodes["node"].y[batch.seeds["node"]])
        times = loader.times()
    assert seen == [(epoch, batch) for epoch in range(2) for batch in range(7)]
    assert list(times) == STAGES
    assert stage_threads() == []


def test_a_closed_loader_frees_the_buffers_of_its_batches():
    """An evaluation may follow, which needs the memory."""
    with loader_of(community_graph()) as loader:
        buffers = [weakref.ref(each) for loaded in loader for each in loaded.buffers]
        assert any(each() is not None for each in buffers), "they are used again while batches come"
    assert all(each() is None for each in buffers)


@pytest.mark.gpu
def test_the_rows_of_a_batch_may_come_from_several_sources(device):
    graph = community_graph()
    x = graph.nodes["node"].x
    cached = cached_source(ArraySource(x), np.arange(0, len(x), 3))
    near = replicated_source([cached, ResidentTable(torch.from_numpy(x.copy()).to(device))])
    for carrier in (
        HostCarrier({"node": cached}),
        DeviceCarrier(device, {"node": near}),
        DeviceCarrier(device, {"node": cached}),
    ):
        with loader_of(graph, carrier=carrier, epochs=1) as loader:
            for loaded in loader:
                vertices = loaded.batch.vertices["node"]
                np.testing.assert_array_equal(loaded.batch.features["node"].cpu().numpy(), x[vertices])


def test_buffers_are_used_again(monkeypatch):
    made = []
    empty = np.empty

    def counted(shape, dtype=float, *more):
        if dtype is np.uint8:
            made.append(shape)
        return empty(shape, dtype, *more)

    monkeypatch.setattr("penstock.pipeline.batch_rows.np.empty", counted)
    with loader_of(community_graph(), epochs=30) as loader:
        assert sum(1 for _ in loader) == 210
    # As many as can be under way at once, and a few more while they grow.
    assert 1 <= len(made) <= 20


def test_a_batch_keeps_its_buffer_until_the_next_is_asked_for():
    graph = community_graph()
    with loader_of(graph, gather_depth=4, transfer_depth=4, gather_threads=2) as loader:
        for loaded in loader:
            before = loaded.batch.features["node"].clone()
            # The other stages run on meanwhile.
            threading.Event().wait(0.002)
            assert torch.equal(before, loaded.batch.features["node"])


def test_types_without_features_are_left_alone_and_others_scaled():
    graph = community_graph()
    with loader_of(graph, sources={}) as loader:
        assert all(loaded.batch.features == {} for loaded in loader)
    with loader_of(graph, scale=lambda x: x * 2) as loader:
        for loaded in loader:
            expected = graph.nodes["node"].x[loaded.batch.vertices["node"]] * 2
            np.testing.assert_allclose(loaded.batch.features["node"].numpy(), expected)


def test_a_failing_label_names_its_stage():
    def broken(batch):
        raise ValueError("no such label")

    with pytest.raises(StageError) as failure, loader_of(community_graph(), label=broken) as loader:
        for _ in loader:
            pass
    assert failure.value.stage == "gather"
    assert stage_threads() == []


def test_leaving_early_ends_every_thread():
    with loader_of(community_graph(), epochs=None, sample_threads=3) as loader:
        for loaded in loader:
            if loaded.position == (1, 2):
                break
    assert stage_threads() == []


def test_what_is_done_aside_is_no_computing(monkeypatch):
    class Clock:
        """Time that passes only when it is told to."""

        now = 0.0

        def perf_counter(self):
            return self.now

    clock = Clock()
    for module in (stages, stage_clock):
        monkeypatch.setattr(module, "time", clock)
    with loader_of(community_graph()) as loader:
        for _ in loader:
            clock.now += 1
            with loader.aside():
                clock.now += 100
        times = loader.times()
    assert times["compute"].busy == 14


def test_the_pool_makes_way_for_larger_buffers():
    pool = BufferPool()
    first, buffer = pool.take((10, 4), np.dtype(np.float32))
    assert first.shape == (10, 4)
    pool.give(buffer)
    second, same = pool.take((12, 4), np.dtype(np.float32))
    assert same is buffer
    pool.give(same)
    third, larger = pool.take((100, 4), np.dtype(np.float64))
    assert larger is not buffer
    assert third.shape == (100, 4)
    assert second.dtype == np.float32
    assert pool._free == []
