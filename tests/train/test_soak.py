"""Fifty epochs in miniature: threads, open files and buffers stay as many as they were."""

import gc
import math
import threading

from penstock.pipeline.batch_rows import BufferPool
from penstock.progress import Progress
from penstock.train import loop
from training_graphs import community_graph, open_files, stage_threads, trained


class Watch(Progress):
    """Notes threads and files when an epoch is over."""

    def __init__(self):
        super().__init__()
        self.threads, self.files = [], []

    def status(self, line):
        self.threads.append(threading.active_count())
        self.files.append(len(open_files()))


def test_nothing_grows(tmp_path, monkeypatch):
    kept = []
    release = BufferPool.release

    def noted(self):
        if type(self) is BufferPool:
            kept.append(len(self._free))
        release(self)

    monkeypatch.setattr(BufferPool, "release", noted)
    # A line an epoch, however slow the machine is.
    monkeypatch.setattr(loop, "_SOON", math.inf)
    graph, watch = community_graph(200), Watch()
    trained(graph, tmp_path / "warm")
    gc.collect()
    threads, files = threading.active_count(), open_files()
    fields = {"sample_threads": 2, "gather_threads": 2, "checkpoint_steps": 20, "evaluate_every": 6}
    trained(graph, tmp_path / "run", epochs=30, progress=watch, **fields)
    assert len(watch.threads) == 30
    # Towards the end, stages that have no more batches to prepare end before the others.
    assert len(set(watch.threads[:24])) == 1
    assert max(watch.threads) == watch.threads[0]
    assert len(set(watch.files)) == 1
    # As many buffers as batches can hold at once: 2 + 2 threads and depths of 2 + 1, and the one that is computed.
    assert 1 <= kept[-1] <= 8
    assert threading.active_count() == threads
    assert stage_threads() == []
    gc.collect()
    assert open_files() == files
