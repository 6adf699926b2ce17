"""Several jobs in threads of one process: results as alone, one mapping of a graph, and crashes that end all."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.service.database import FINAL
from penstock.service.scheduler import after_end, newest_step
from penstock.service.workers.pool import SharedPool, WarmPool
from penstock.service.workers.shared_jobs import OpenGraphs
from penstock.store.device.copies import SharedCopies, copies_shared, one_copy
from penstock.train.job import job_of
from queue_parts import make_parts
from training_graphs import assert_same_state, community_graph, newest_checkpoint, trained

QUICK = {"fanouts": [4, 3], "hidden": 16, "batch_size": 16, "epochs": 6, "checkpoint_minutes": 0, "threads": 1}
ENDLESS = {**QUICK, "epochs": 100_000, "evaluate_every": 0, "checkpoint_steps": 5}
PATIENCE_S = 120


@pytest.fixture(scope="module")
def pool():
    found = WarmPool()
    yield found
    found.close()


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return community_graph(120).save(tmp_path_factory.mktemp("queue") / "graph")


@pytest.fixture
def parts(tmp_path, graph, pool):
    shared = SharedPool(pool, tmp_path / "queue" / "jobs" / "shared")
    found = make_parts(tmp_path / "queue", allowed=[graph.path.resolve().parent], pool=pool, trainers=shared)
    yield found
    for task in found.scheduler._active.values():
        task.process.close()
    found.scheduler._active.clear()
    shared.close()
    found.close()


def submitted(parts, graph, **fields):
    """A job whose memory is known."""
    (record,) = parts.operations.submit({"graph": str(graph.path), **fields}, {}, 0)
    parts.database.change(record.id, state="waiting", host_bytes=1 << 30)
    return record.id


def until(parts, condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, [record.shown() for record in parts.database.jobs()]
        parts.scheduler.tick()


def states(parts, numbers):
    return [parts.database.job(number).state for number in numbers]


def test_jobs_share_a_process_and_have_the_weights_of_runs_alone(parts, graph, tmp_path):
    variants = [{"seed": 1, "model": "sage", "dropout": 0.3}, {"seed": 2, "model": "gat"}]
    numbers = [submitted(parts, graph, **QUICK, **fields) for fields in variants]
    parts.scheduler.tick()
    pids = {parts.database.job(number).pid for number in numbers}
    assert len(pids) == 1 and None not in pids, "both are in one process"
    until(parts, lambda: all(state in FINAL for state in states(parts, numbers)))
    for number, fields in zip(numbers, variants, strict=True):
        record = parts.database.job(number)
        log = parts.operations.log(number, 0)["text"]
        assert (record.state, record.tries, record.pid) == ("ended", 1, None), (record.reason, log)
        assert "training" in log and parts.operations.report(number)
        alone = trained(graph, tmp_path / f"alone-{number}", **QUICK, **fields)
        assert_same_state(newest_checkpoint(alone.path), newest_checkpoint(record.run))
    later = submitted(parts, graph, **QUICK)
    parts.scheduler.tick()
    assert {parts.database.job(later).pid} == pids, "the process stays warm for the next job"
    until(parts, lambda: states(parts, [later]) == ["ended"])


def test_one_of_several_is_cancelled_and_a_crash_of_all_is_told(parts, graph):
    first, second, third = [submitted(parts, graph, **ENDLESS, seed=seed) for seed in range(3)]
    until(parts, lambda: states(parts, [first, second]) == ["running"] * 2)
    assert states(parts, [third]) == ["waiting"], "there are two cores"
    parts.operations.cancel(first)
    until(parts, lambda: states(parts, [first, second, third]) == ["cancelled", "running", "running"])
    assert newest_step(Path(parts.database.job(first).run)) >= 0
    assert parts.database.job(second).tries == 1
    until(parts, lambda: all(newest_step(Path(parts.database.job(each).run)) >= 5 for each in (second, third)))
    os.kill(parts.database.job(third).pid, signal.SIGKILL)
    until(parts, lambda: all(parts.database.job(each).alone for each in (second, third)))
    told = [event.fields for event in parts.feed.after(0) if event.fields["state"] == "interrupted"]
    assert {each["id"] for each in told} == {second, third}
    assert all("shared with other jobs" in each["reason"] and "alone" in each["reason"] for each in told)
    # They go on one after the other, each from its checkpoint.
    until(parts, lambda: "running" in states(parts, [second, third]))
    going = second if parts.database.job(second).state == "running" else third
    assert parts.database.job(going).tries == 2
    assert "Resuming from" in parts.operations.log(going, 0)["text"]


def test_a_job_with_other_threads_has_another_process(parts, graph):
    numbers = [submitted(parts, graph, **{**ENDLESS, "threads": threads}) for threads in (1, 1)]
    until(parts, lambda: states(parts, numbers) == ["running"] * 2)
    shared = parts.scheduler._trainers
    task = {"document": {"threads": 2, "compute_type": "float32"}, "alone": False}
    other = shared.start(parts.folder.job(99), {}, task)
    assert other.name.pid not in {parts.database.job(number).pid for number in numbers}
    again = shared.start(parts.folder.job(98), {}, task)
    assert again.name.pid == other.name.pid
    for each in (other, again):
        each.close()


def test_whoever_ends_a_job_at_once_is_not_anothers_fault():
    from test_queue_outcomes import JOB

    lost = after_end(JOB, None, step=9, with_others=True)
    assert (lost["state"], lost["alone"], lost["lost"]) == ("interrupted", 1, 1)
    assert "alone" not in after_end(JOB, None, step=9, with_others=False)


def test_jobs_on_one_graph_share_its_mapping(graph):
    graphs = OpenGraphs()
    jobs = [job_of({"graph": str(graph.path), "seed": seed}) for seed in range(2)]
    first, second = map(graphs.of, jobs)
    assert first is second
    other = job_of({"graph": str(graph.path), "unchecked": True})
    assert graphs.of(other) is not first, "what is trusted for one job is checked for another"


def test_a_copy_on_a_device_is_made_once_and_goes_with_its_last_user():
    array, host = np.arange(12, dtype=np.float32).reshape(4, 3), torch.device("cpu")
    assert one_copy(array, host) is not one_copy(array, host)
    copies = SharedCopies()
    with copies_shared(copies):
        first, second = one_copy(array, host), one_copy(array, host)
        assert first is second and torch.equal(first, torch.from_numpy(array))
        assert one_copy(array, host, torch.float16).dtype is torch.float16
        assert one_copy(array.copy(), host) is not first
    place = first.data_ptr()
    del first, second
    with copies_shared(copies):
        again = one_copy(array, host)
    assert len(copies._known) == 1 and torch.equal(again, torch.from_numpy(array)) and place


class MadeUpStreams:
    """Streams of a GPU that is not there: what is reserved for them is said."""

    reserved = 0

    def reserved_bytes(self):
        return self.reserved


def test_a_job_is_stopped_that_reserves_more_of_a_shared_device_than_its_part(monkeypatch):
    from contextlib import nullcontext
    from types import SimpleNamespace

    from penstock.service.workers import tasks

    made, limits, told, stopped = [MadeUpStreams(), MadeUpStreams()], [], [], []
    streams, unused = made[0], iter(made)
    monkeypatch.setattr(tasks, "streams_of_run", lambda device: nullcontext(next(unused)))
    monkeypatch.setattr(tasks, "limit_process", limits.append)
    monkeypatch.setattr(tasks, "give_back_unused", lambda: None)
    monkeypatch.setattr(tasks, "reserved_by_process", lambda: 7 + sum(each.reserved for each in made))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=1000))
    task = {"device_bytes": 120, "context_bytes": 20, "room_bytes": 900}
    limit = tasks.ProcessLimit()
    grants = [tasks.SharedDevice(task, limit, lambda: stopped.append(True)) for _ in range(2)]
    reports = SimpleNamespace(say=lambda **fields: told.append(fields))
    assert grants[0].peak_bytes() is None
    with grants[0].entered(reports), grants[1].entered(reports):
        streams.reserved = 100
        assert (grants[0].peak_bytes(), grants[0].exceeded, stopped) == (100, "", [])
        streams.reserved = 101
        assert grants[0].peak_bytes() == grants[0].peak_bytes() == 101
        assert "granted" in grants[0].exceeded and stopped == [True], "it is told once"
        streams.reserved = 3
    assert limits == [107, 207, 107, 1000], "what its jobs were granted together, beside the 7 bytes that are no job's"
    assert grants[0].peak_bytes() == 101
