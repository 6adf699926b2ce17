"""What becomes of a job when its process has ended, and when its memory is known: decisions, without processes."""

import time
from dataclasses import replace

import pytest

from penstock.service.admission import (
    JobDevice,
    SpeedMeter,
    Speeds,
    after_forecast,
    need_of_alike,
    start_of,
    waiting_jobs,
)
from penstock.service.database import JobRecord, best_of
from penstock.service.policies import DeviceRoom
from penstock.service.scheduler import MOST_LOST, after_end
from penstock.service.workers import tasks
from penstock.service.workers.tasks import reached
from penstock.train.job import make_job
from penstock.train.memory import process_memory
from penstock.train.memory.forecast import MemoryForecast
from penstock.train.memory.process_memory import ProcessMemory
from refusals import check_refusal

JOB = JobRecord(
    id=1,
    name="a",
    document={},
    priority=0,
    state="running",
    reason="",
    code=None,
    kind="cpu",
    cores=1,
    device_bytes=None,
    host_bytes=100,
    forecast={},
    granted_device_bytes=None,
    granted_host_bytes=100,
    peak_device_bytes=None,
    peak_host_bytes=150,
    device="cpu",
    alone=False,
    cancelling=False,
    tries=1,
    lost=0,
    step=3,
    submitted=0.0,
    started=0.0,
    ended=None,
    seconds=0.0,
    pid=5,
    process_started="x",
    run="/runs/1",
)
UP = {"name": "accuracy", "better": "higher"}
DOWN = {"name": "rmse", "better": "lower"}
ROOMS = [JobDevice(DeviceRoom(name="cpu", kind="cpu", host_bytes=1000, cores=4.0), {}, "")]
FAILED = {"state": "failed", "code": "diverged", "reason": "The loss became NaN.", "fault": False}


def test_a_job_that_is_done_has_ended_unless_it_was_cancelled():
    assert after_end(JOB, {"state": "done"}, step=9)["state"] == "ended"
    assert after_end(replace(JOB, cancelling=True), {"state": "done"}, step=9)["state"] == "cancelled"
    assert after_end(replace(JOB, cancelling=True), None, step=9)["state"] == "cancelled"


def test_a_failure_is_told_in_its_own_words():
    found = after_end(JOB, FAILED, step=3)
    assert (found["state"], found["code"], found["reason"]) == ("failed", "diverged", "The loss became NaN.")


def test_a_killed_process_counts_only_without_a_new_checkpoint():
    assert after_end(JOB, None, step=3) | {"reason": ""} == {"state": "interrupted", "reason": "", "lost": 1, "step": 3}
    assert after_end(replace(JOB, lost=MOST_LOST), None, step=4)["lost"] == 1
    assert after_end(replace(JOB, lost=MOST_LOST), None, step=3)["state"] == "failed"
    # What the service does itself is nobody's fault.
    assert "lost" not in after_end(replace(JOB, lost=MOST_LOST), None, step=3, stopping=True)


def test_too_little_memory_is_forgiven_once():
    first = after_end(JOB, None, step=3, too_much="It took too much.")
    assert (first["state"], first["alone"], first["host_bytes"]) == ("interrupted", 1, 150)
    second = after_end(replace(JOB, alone=True), None, step=3, too_much="It took too much.")
    check_refusal(second["code"], second["reason"], "out-of-memory whole device")
    full = {**FAILED, "code": "out-of-memory"}
    assert after_end(JOB, full, step=3)["alone"] == 1
    assert after_end(replace(JOB, alone=True), full, step=3)["state"] == "failed"


def test_a_fault_of_a_shared_device_is_tried_again_alone():
    fault = {**FAILED, "fault": True}
    assert after_end(JOB, fault, step=3, beside=True)["alone"] == 1
    assert after_end(JOB, fault, step=3, beside=False)["state"] == "failed"
    assert after_end(replace(JOB, alone=True), fault, step=3, beside=True)["state"] == "failed"


def test_a_run_folder_that_is_still_held_is_tried_again_a_few_times():
    held = {**FAILED, "code": "in-use"}
    assert after_end(JOB, held, step=3)["state"] == "interrupted"
    assert after_end(replace(JOB, lost=MOST_LOST), held, step=3)["state"] == "failed"


def need(host, device=None):
    fields = {"host_bytes": host, "device_bytes": device, "forecast": {"advice": "lower batch_size to 8."}}
    return {"state": "done", "need": fields}


def test_a_forecast_lets_a_job_wait_or_refuses_it_for_good():
    assert after_forecast(JOB, need(900), ROOMS)["state"] == "waiting"
    found = after_forecast(JOB, need(1001), ROOMS)
    check_refusal(found["code"], found["reason"], "out-of-memory 1,001 1,000 batch_size")
    unknown = after_forecast(JOB, need(None), ROOMS)
    assert (unknown["state"], unknown["alone"]) == ("waiting", 1)
    assert after_forecast(JOB, None, ROOMS)["alone"] == 1
    assert after_forecast(JOB, FAILED, ROOMS)["code"] == "diverged"
    assert after_forecast(replace(JOB, cores=5), need(1), ROOMS)["state"] == "failed"


def test_what_a_job_alike_has_taken_stands_for_a_forecast():
    assert need_of_alike(JOB)["host_bytes"] == 100
    assert need_of_alike(replace(JOB, host_bytes=None)) is None
    assert need_of_alike(replace(JOB, host_bytes=None, state="ended"))["host_bytes"] == pytest.approx(165, abs=1)


def test_a_policy_is_told_the_share_of_the_processor_and_the_age():
    row = {
        "id": 3,
        "kind": "cpu",
        "device_bytes": None,
        "host_bytes": 7,
        "cores": 2,
        "priority": 1,
        "alone": 0,
        "since": "",
        "seconds": 0.0,
        "known_s": 4.0,
        "predicted_s": 7.0,
        "throughput_share": None,
    }
    (job,) = waiting_jobs([row], ROOMS, {"cpu": 2.0})
    assert (job.id, job.kind, job.share, job.waited_s, job.expected_s) == ("3", "cpu", 0.5, 0.0, 4.0)


@pytest.mark.parametrize(
    ("known", "predicted", "spent", "expected"),
    [
        (4.0, 7.0, 0.0, 4.0),
        (None, 7.0, 0.0, 14.0),
        (None, 7.0, 4.0, 10.0),
        (4.0, None, 5.0, 0.4),
        (None, None, 5.0, None),
    ],
)
def test_what_is_left_of_a_job_is_known_forecast_or_unknown(known, predicted, spent, expected):
    row = {"id": 3, "kind": "cpu", "device_bytes": None, "host_bytes": 7, "cores": 2, "priority": 1, "alone": 0}
    row |= {"since": "", "throughput_share": None, "seconds": spent, "known_s": known, "predicted_s": predicted}
    (job,) = waiting_jobs([row], ROOMS, {"cpu": 2.0})
    assert job.expected_s == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(("predicted", "share"), [(0.1, 0.1), (0.7, None), (None, None)])
def test_a_small_predicted_share_of_a_gpu_is_believed_and_a_large_one_is_measured(predicted, share):
    row = {"id": 3, "kind": "cuda", "device_bytes": 5, "host_bytes": 7, "cores": 1, "priority": 1, "alone": 0}
    row |= {"since": "", "seconds": 0.0, "known_s": None, "predicted_s": None, "throughput_share": predicted}
    (job,) = waiting_jobs([row], ROOMS, {})
    assert job.share == share


def test_a_job_whose_steps_a_gpu_replays_takes_one_core():
    job, answer = replace(JOB, kind="cuda", cores=4), need(1, 1)
    rooms = [JobDevice(DeviceRoom(name="cuda:0", kind="cuda", bytes=9, host_bytes=1000, cores=4.0), {}, "")]
    assert after_forecast(job, answer, rooms)["cores"] == 4
    answer["need"]["cores"] = 1
    assert after_forecast(job, answer, rooms)["cores"] == 1
    # Forecast again by a service with other devices, which does not record steps.
    answer["need"]["cores"] = None
    assert after_forecast(replace(job, cores=1, document={"threads": 4}), answer, rooms)["cores"] == 4


def test_what_a_job_alike_of_a_gpu_tells():
    alike = replace(JOB, kind="cuda", cores=1, device_bytes=5, forecast={"throughput_share": None})
    assert need_of_alike(alike)["cores"] == 1
    # A forecast of an earlier release does not say how many jobs may run beside it.
    assert need_of_alike(replace(alike, forecast={})) is None


def test_a_start_asks_for_the_cores_that_the_job_keeps_busy():
    _, task = start_of(replace(JOB, cores=1, document={"threads": 8}), ROOMS[0], modules=False)
    assert task["cores"] == 1


def test_speed_is_measured_against_running_alone(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    speeds, meter = Speeds(), SpeedMeter()
    meter.note(0)
    now[0] += 10
    meter.note(100)
    assert speeds.of(meter, "x") == 1.0
    meter.beside(frozenset({2}))
    assert speeds.of(meter, "x") is None
    meter.note(100)
    now[0] += 10
    meter.note(150)
    assert speeds.of(meter, "x") == pytest.approx(0.5)
    assert speeds.of(meter, "y") is None


@pytest.mark.parametrize(
    ("metrics", "best"),
    [
        ({}, None),
        ({1: {**UP, "val": 0.5}, 2: UP, 3: {}}, None),
        ({1: {**UP, "val": 0.5}, 2: {**UP, "val": 0.75}, 3: {}}, 2),
        ({1: {**DOWN, "val": 0.5}, 2: {**DOWN, "val": 0.75}}, 1),
        ({2: {**UP, "val": 0.5}, 1: {**UP, "val": 0.5}}, 1),
        ({1: {**UP, "val": 0.5}, 2: {**DOWN, "val": 0.75}}, None),
    ],
)
def test_the_best_of_a_sweep_is_judged_by_validation(metrics, best):
    assert best_of(metrics) == best


def test_what_is_no_number_is_left_out_of_what_a_job_has_reached():
    assert reached("mrr", "higher", 0.5, 3, float("nan")) == {"name": "mrr", "better": "higher", "val": 0.5, "epoch": 3}


def test_the_host_is_granted_what_a_job_takes_beyond_the_pages_that_all_jobs_share(monkeypatch):
    parts = {"process": 400, "features": 100}
    known = ProcessMemory(resident=400, files=150)
    found = MemoryForecast("cpu", 0, 0, 0, 500, parts, parts, "a step", "traced", "")
    monkeypatch.setattr(process_memory, "_known", lambda *_: known)
    monkeypatch.setattr(tasks, "forecast", lambda *given, **more: found)
    need = tasks.memory_need(make_job({}), {"bytes": 0}, 240)
    assert need["forecast"]["host_bytes"] == 350
    assert need["forecast"]["categories"] == {"process": 250, "features": 100}
    # The margin is on what the job itself takes, which is traced; the process is measured.
    assert need["host_bytes"] == 250 + tasks.with_margin(100, 0.4)
    # What a fork has from the process that it was forked from counts, where that is more.
    need = tasks.memory_need(make_job({}), {"bytes": 0}, 300)
    assert need["host_bytes"] == 300 + tasks.with_margin(100, 0.4)
