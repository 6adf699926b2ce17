"""Several jobs in threads of one process on a GPU: streams, memory and a limit of their own."""

import json
import os
import time
from pathlib import Path

import pytest
import torch

from penstock.sampling.device.streams import current_streams, rest, stream_maker, streams_of_run
from penstock.service.workers.shared_jobs import SharedJobs
from penstock.service.workers.tasks import ProcessLimit, Reports, SharedDevice
from training_graphs import assert_same_state, community_graph, newest_checkpoint, trained

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda_device")]
GPU = torch.device("cuda", 0)
JOB = {"fanouts": [4, 3], "hidden": 16, "batch_size": 64, "epochs": 20, "threads": 1, "device": "cuda", "lr": 0.01}
PATIENCE_S = 300


class HeardJobs:
    """Jobs of this very process, and what they report."""

    def __init__(self, folder):
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        self.jobs, self._folder, self._unread = SharedJobs(Reports(write)), folder, b""
        self.outcomes = {}

    def begin(self, number, graph, device_bytes=4 << 30, **fields):
        task = {
            "document": {"graph": str(graph.path), **JOB, **fields},
            "run": str(self._folder / f"run-{number}"),
            "tries": 1,
            "modules": False,
            "device_bytes": device_bytes,
            "host_bytes": 8 << 30,
            "room_bytes": 16 << 30,
            "context_bytes": 0,
        }
        self.jobs.begin(number, task, self._folder / f"log-{number}.txt")

    def wait(self, *numbers):
        end = time.monotonic() + PATIENCE_S
        while not set(numbers) <= set(self.outcomes):
            assert time.monotonic() < end
            try:
                self._unread += os.read(self._read, 1 << 16)
            except BlockingIOError:
                time.sleep(0.01)
            *lines, self._unread = self._unread.split(b"\n")
            for message in map(json.loads, lines):
                if "outcome" in message:
                    self.outcomes[message["job"]] = message["outcome"]
        return [self.outcomes[number] for number in numbers]


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return community_graph(3000).save(tmp_path_factory.mktemp("streams") / "graph")


@pytest.mark.parametrize("fields", [{}, {"capture": False}, {"sampler": "whole", "layers": 2}], ids=str)
def test_jobs_beside_each_other_have_the_weights_of_runs_alone(fields, graph, tmp_path):
    heard = HeardJobs(tmp_path)
    for number in range(3):
        heard.begin(number, graph, seed=number, **fields)
    found = heard.wait(0, 1, 2)
    logs = [(tmp_path / f"log-{number}.txt").read_text() for number in range(3)]
    assert [each["state"] for each in found] == ["done"] * 3, (found, logs)
    assert all(0 < each["device_bytes"] <= 4 << 30 for each in found)
    for number in range(3):
        alone = trained(graph, tmp_path / f"alone-{number}", **JOB, seed=number, **fields)
        assert_same_state(newest_checkpoint(alone.path), newest_checkpoint(tmp_path / f"run-{number}"))


def test_a_job_that_takes_more_than_its_part_is_told_and_the_others_go_on(graph, tmp_path):
    heard = HeardJobs(tmp_path)
    heard.begin(0, graph, epochs=400, seed=1)
    # Long enough for somebody to look: its memory is looked at every second.
    heard.begin(1, graph, device_bytes=3 << 20, epochs=100_000, evaluate_every=0)
    small, large = heard.wait(1, 0)
    assert (small["state"], small["code"]) == ("failed", "out-of-memory"), small
    assert large["state"] == "done"


def test_memory_is_counted_for_the_streams_that_it_was_reserved_for():
    with streams_of_run(GPU) as first:
        before = first.reserved_bytes()
        held = torch.zeros(32 << 20, dtype=torch.uint8, device=GPU)
        with streams_of_run(GPU) as second:
            beside = torch.zeros(64 << 20, dtype=torch.uint8, device=GPU)
            side = stream_maker(GPU)()
            assert current_streams() is second
            with torch.cuda.stream(side):
                third = torch.zeros(16 << 20, dtype=torch.uint8, device=GPU)
            rest(GPU)
            assert second.reserved_bytes() >= 80 << 20
        assert first.reserved_bytes() - before == 32 << 20
        del beside, third, held
    assert current_streams() is None


def test_a_capture_goes_on_while_another_run_allocates_and_waits():
    import threading

    done, failed = threading.Event(), []

    def disturb():
        with streams_of_run(GPU):
            while not done.is_set():
                try:
                    x = torch.zeros(1 << 20, device=GPU)
                    assert float((x + 1).sum()) == 1 << 20
                    rest(GPU)
                    torch.cuda.empty_cache()
                except Exception as error:
                    failed.append(error)
                    return

    from penstock.train.steps.runner import Recorded

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        with streams_of_run(GPU):
            x = torch.zeros(1 << 16, device=GPU)
            for _ in range(20):
                recorded = Recorded(GPU).record(lambda: x.add_(1))
                recorded.replay()
            rest(GPU)
            assert float(x[0]) == 20
    finally:
        done.set()
        thread.join()
    assert failed == []


def test_a_process_may_reserve_what_its_jobs_were_granted_together():
    limit, stopped = ProcessLimit(), []
    task = {"device_bytes": 64 << 20, "context_bytes": 0, "room_bytes": 16 << 30}
    grant = SharedDevice(task, limit, lambda: stopped.append(True))
    with Path(os.devnull).open("wb") as nowhere, grant.entered(Reports(nowhere.fileno())):
        held = torch.zeros(20 << 20, dtype=torch.uint8, device=GPU)
        assert grant.peak_bytes() >= 20 << 20 and not stopped
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(torch.cuda.get_device_properties(GPU).total_memory // 2, dtype=torch.uint8, device=GPU)
        del held
