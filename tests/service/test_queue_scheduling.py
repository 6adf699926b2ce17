"""Jobs from their submission to their end: real processes that are killed, stopped, and run out of what they have."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from penstock.service import admission
from penstock.service.database import FINAL
from penstock.service.scheduler import newest_step
from penstock.service.workers import warm
from penstock.service.workers.pool import ProcessName, TaskProcess, WarmPool
from queue_parts import make_parts
from refusals import check_refusal, refused
from training_graphs import assert_same_state, community_graph, newest_checkpoint, trained

QUICK = {"fanouts": [4, 3], "hidden": 16, "batch_size": 16, "epochs": 2, "checkpoint_minutes": 0, "threads": 1}
LONG = {**QUICK, "epochs": 40, "checkpoint_steps": 5}
ENDLESS = {**QUICK, "epochs": 100_000, "evaluate_every": 0}
PATIENCE_S = 120


@pytest.fixture(scope="module")
def pool(warm_program_is_program):
    """One warm program for all tests of this file: it takes seconds to import."""
    found = WarmPool()
    yield found
    found.close()


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return community_graph(120).save(tmp_path_factory.mktemp("queue") / "graph")


@pytest.fixture
def parts(tmp_path, graph, pool):
    found = make_parts(tmp_path / "queue", allowed=[graph.path.resolve().parent, tmp_path.resolve()], pool=pool)
    yield found
    abandon(found)


def abandon(parts):
    """Leave a service as a kill would: its descriptors are closed, and nothing is settled."""
    for task in parts.scheduler._active.values():
        task.process.close()
    parts.scheduler._active.clear()
    parts.close()


def stop(pid):
    """Stop a process and wait until every thread of it stands still: one that writes to a disk goes on for a while, and
    so do the others until then."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + PATIENCE_S
    while {_state(each) for each in Path(f"/proc/{pid}/task").iterdir()} != {"T"}:
        assert time.monotonic() < end


def _state(thread):
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


def submitted(parts, graph, **fields):
    (record,) = parts.operations.submit({"graph": str(graph.path), **fields}, {}, 0)
    return record.id


def until(parts, condition):
    """Let the scheduler work until something holds."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, [record.shown() for record in parts.database.jobs()]
        parts.scheduler.tick()


def in_state(parts, number, *states):
    """Let the scheduler work until the job is in one of the states; its record."""
    until(parts, lambda: parts.database.job(number).state in states)
    return parts.database.job(number)


def ended(parts, number):
    record = in_state(parts, number, *FINAL)
    assert record.state == "ended", (record.reason, parts.operations.log(number, 0)["text"])
    return record


@pytest.fixture(scope="module")
def undisturbed(graph, tmp_path_factory):
    """The run that nothing happened to."""
    return trained(graph, tmp_path_factory.mktemp("undisturbed") / "run", **LONG)


def test_a_job_is_forecast_trained_and_its_weights_are_those_of_a_run_of_its_own(parts, graph, undisturbed):
    number = submitted(parts, graph, **LONG)
    record = ended(parts, number)
    assert (record.tries, record.device, record.code) == (1, "cpu", None)
    assert 10 << 20 < record.peak_host_bytes <= record.granted_host_bytes == record.host_bytes
    assert record.forecast["method"] in ("traced", "trial", "rule")
    assert record.seconds > 0
    result = undisturbed.result
    assert record.metric == {
        "name": "accuracy",
        "better": "higher",
        "val": result["best_value"],
        "epoch": result["best_epoch"],
        "test": undisturbed.test["accuracy"],
    }
    assert record.submitted <= record.started <= record.ended
    assert_same_state(newest_checkpoint(undisturbed.path), newest_checkpoint(record.run))
    assert parts.operations.described(number)["result"]["steps"] == undisturbed.result["steps"]
    assert "training" in parts.operations.log(number, 0)["text"]
    report = parts.operations.described(number)["report"]
    assert report == str(Path(record.run) / "report.html") and "Run" in parts.operations.report(number)
    kinds = {each["kind"] for each in parts.operations.metrics(number, 0)["records"]}
    assert "epoch" in kinds


def test_forecasts_are_made_beside_each_other_and_ended_when_they_take_too_long(parts, graph, monkeypatch):
    slow, begin = [], TaskProcess.begin
    # The first one never hears what to do, and so takes for ever.
    begun = lambda process, task: begin(process, task) if slow else slow.append(process)  # noqa: E731
    monkeypatch.setattr(TaskProcess, "begin", begun)
    numbers = [submitted(parts, graph, **QUICK | {"hidden": 8 * width}) for width in (1, 2, 3, 4)]
    parts.scheduler.tick()
    # Three at once on two cores: nobody waits behind a slow one.
    states = [parts.database.job(number).state for number in numbers]
    assert states == ["forecasting"] * 3 + ["submitted"]
    in_state(parts, numbers[3], "waiting", "starting", "running", "ended")
    assert parts.database.job(numbers[0]).state == "forecasting"
    monkeypatch.setattr(admission, "FORECAST_S", 0.0)
    record = in_state(parts, numbers[0], "waiting", "starting", "running")
    assert record.alone
    assert ended(parts, numbers[0]).tries == 1


def test_a_forecast_has_bounds():
    assert admission.too_much_of_forecast(1 << 30, 1.0, 4 << 30) is None
    assert "GB" in admission.too_much_of_forecast(3 << 30, 1.0, 4 << 30)
    assert admission.too_much_of_forecast(3 << 30, 1.0, 64 << 30) is None
    assert "300 s" in admission.too_much_of_forecast(0, 301.0, 64 << 30)


def test_a_job_that_no_machine_could_hold_fails_at_once_and_keeps_nobody_waiting(parts, graph):
    absurd = [submitted(parts, graph, **QUICK | {"hidden": width}) for width in (1 << 31, 1 << 28, 1 << 62)]
    number = submitted(parts, graph, **QUICK)
    for each in absurd:
        record = in_state(parts, each, *FINAL)
        assert (record.state, record.code, record.tries) == ("failed", "out-of-memory", 0), record.reason
    assert ended(parts, number).tries == 1


def test_kernels_that_forks_have_used_are_loaded_once():
    kernels, loaded = warm.KernelsOfForks(), []
    kernels._load_kept, kernels._used = loaded.append, lambda: {"a:one", "b:two"}
    for _ in range(2):
        kernels.tell()
        kernels.load()
    assert sorted(loaded) == ["a:one", "b:two"]
    # More than a pipe holds is left out.
    kernels._used = lambda: {f"c:{number:0100}" for number in range(2000)}
    kernels.tell()
    kernels.load()
    assert 100 < len(loaded) < 2000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts the threads of a process in /proc")
def test_the_process_that_forks_has_one_thread(parts, graph):
    """A fork of one with several may wait for ever for what another thread had locked; Python 3.12 warns of it.

    Two programs: that of these tests, and one whose user has set how many threads there are to be.
    """
    for _ in range(2):  # Before the second it loads the kernels that the first has used.
        ended(parts, submitted(parts, graph, **QUICK))
    assert len([*Path(f"/proc/{parts.pool._program.pid}/task").iterdir()]) == 1
    script = "from penstock.service.workers import warm; warm.import_everything(); import os, torch; print("
    script += "len(os.listdir('/proc/self/task')), os.environ.get('OPENBLAS_NUM_THREADS'), torch.get_num_threads())"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    threads, kept, of_torch = done.stdout.split()
    assert (threads, kept) == ("1", "7")
    assert int(of_torch) == torch.get_num_threads()


def test_settings_that_nobody_has_made_are_left_as_they_were(monkeypatch):
    """Libraries are loaded under settings of their own, of which later forks see nothing."""
    for name in warm._WITHOUT_THREADS:
        monkeypatch.delenv(name, raising=False)
    with warm._libraries_start_no_threads():
        assert all(os.environ[name] == value for name, value in warm._WITHOUT_THREADS.items())
    assert not any(name in os.environ for name in warm._WITHOUT_THREADS)


def test_a_job_that_is_killed_goes_on_from_its_checkpoint(parts, graph, undisturbed):
    number = submitted(parts, graph, **LONG)
    for step in (20, 60):
        run = parts.folder.job(number) / "run"
        until(parts, lambda run=run, step=step: newest_step(run) >= step)
        os.kill(parts.database.job(number).pid, signal.SIGKILL)
    record = ended(parts, number)
    assert record.tries == 3
    assert_same_state(newest_checkpoint(undisturbed.path), newest_checkpoint(record.run))


def test_a_service_that_was_killed_is_followed_by_one_that_goes_on(parts, graph, undisturbed, tmp_path, pool):
    number = submitted(parts, graph, **LONG)
    waiting = submitted(parts, graph, **QUICK)
    until(parts, lambda: newest_step(parts.folder.job(number) / "run") >= 20)
    process = ProcessName(parts.database.job(number).pid, parts.database.job(number).process_started)
    # A process that cannot notice that its service is gone: the next one has to end it.
    stop(process.pid)
    abandon(parts)
    assert process.is_alive
    later = make_parts(tmp_path / "queue", allowed=[graph.path.resolve().parent], pool=pool)
    later.scheduler.recover()
    assert not process.is_alive
    assert later.database.job(number).state == "interrupted"
    assert ended(later, number).tries == 2
    ended(later, waiting)
    assert_same_state(newest_checkpoint(undisturbed.path), newest_checkpoint(later.database.job(number).run))
    abandon(later)


def test_a_process_ends_with_its_service(parts, graph):
    number = submitted(parts, graph, **ENDLESS)
    in_state(parts, number, "running")
    process = parts.scheduler._active[number].process.name
    abandon(parts)
    end = time.monotonic() + PATIENCE_S
    while process.is_alive:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("phase", ["submitted", "forecasting", "waiting", "starting", "running", "interrupted"])
def test_a_job_can_be_cancelled_in_every_phase(phase, parts, graph):
    number = submitted(parts, graph, **ENDLESS)
    if phase == "waiting":
        parts.database.change(number, state="waiting", host_bytes=1 << 20)
    elif phase == "interrupted":
        parts.database.change(number, state="interrupted", host_bytes=1 << 20)
    elif phase != "submitted":
        in_state(parts, number, phase)
    assert parts.database.job(number).state == phase
    process = parts.scheduler._active[number].process.name if number in parts.scheduler._active else None
    parts.operations.cancel(number)
    record = in_state(parts, number, "cancelled")
    assert record.reason
    assert record.pid is None
    assert process is None or not process.is_alive
    with refused("closed cancelled"):
        parts.operations.cancel(number)
    if phase == "running":
        assert newest_step(Path(record.run)) >= 0


def test_a_cancelled_job_stays_cancelled_when_the_service_is_killed_before_it_stopped(parts, graph, tmp_path, pool):
    number = submitted(parts, graph, **ENDLESS)
    in_state(parts, number, "running")
    parts.operations.cancel(number)
    abandon(parts)
    later = make_parts(tmp_path / "queue", pool=pool)
    later.scheduler.recover()
    assert later.database.job(number).state == "cancelled"
    abandon(later)


def test_a_job_that_takes_more_than_it_was_granted_is_told_and_tried_once_more_alone(parts, graph):
    number = submitted(parts, graph, **QUICK)
    parts.database.change(number, state="waiting", host_bytes=1 << 20)
    record = ended(parts, number)
    (told,) = (each.fields for each in parts.feed.after(0) if each.fields["state"] == "interrupted")
    assert "granted" in told["reason"] and "alone" in told["reason"]
    assert told["host_bytes"] == told["peak_host_bytes"] > 10 << 20
    assert (record.tries, record.alone, record.granted_host_bytes) == (2, True, 4 << 30)


def test_a_job_that_is_too_large_even_alone_fails(tmp_path, graph, pool):
    parts = make_parts(tmp_path / "queue", allowed=[graph.path.resolve().parent], pool=pool, host_bytes=2 << 20)
    number = submitted(parts, graph, **QUICK)
    parts.database.change(number, state="waiting", host_bytes=1 << 20, alone=1)
    record = in_state(parts, number, *FINAL)
    assert record.state == "failed"
    check_refusal(record.code, record.reason, "out-of-memory whole device")
    abandon(parts)


def test_a_graph_that_has_vanished_and_one_that_leads_elsewhere_fail_with_a_sentence(parts, graph, tmp_path):
    elsewhere = community_graph(30).save(tmp_path / "moved")
    gone, led_away = submitted(parts, elsewhere, **QUICK), submitted(parts, elsewhere, **QUICK, seed=5)
    for number in (gone, led_away):
        parts.database.change(number, state="waiting", host_bytes=1 << 30)
    elsewhere.path.rename(tmp_path / "away")
    record = in_state(parts, gone, *FINAL)
    check_refusal(record.code, record.reason, "graph-not-found moved")
    record = in_state(parts, led_away, *FINAL)
    (tmp_path / "moved").symlink_to("/etc")
    third = parts.database.add([{**COLUMNS, "document": {"graph": str(tmp_path / "moved")}}], lambda number: tmp_path)
    parts.database.change(third[0].id, state="waiting", host_bytes=1 << 20)
    record = in_state(parts, third[0].id, *FINAL)
    check_refusal(record.code, record.reason, "not-permitted moved")


COLUMNS = {"name": "a", "priority": 0, "kind": "cpu", "cores": 1, "run": "", "likeness": "z"}


def test_a_job_that_cannot_be_trained_fails_with_its_sentence_and_others_go_on(parts, graph):
    wrong = submitted(parts, graph, **QUICK, metric="no-such-metric")
    right = submitted(parts, graph, **QUICK)
    ended(parts, right)
    record = in_state(parts, wrong, *FINAL)
    assert record.state == "failed"
    check_refusal(record.code, record.reason, "unknown-name no-such-metric")


def test_a_cancelled_job_that_is_tried_again_goes_on_from_its_checkpoint(parts, graph):
    number = submitted(parts, graph, **ENDLESS)
    run, steps, first = parts.folder.job(number) / "run", [], []
    for _ in range(2):
        in_state(parts, number, "running")
        parts.operations.cancel(number)
        in_state(parts, number, "cancelled")
        steps.append(newest_step(run))
        first.append((run / "metrics.jsonl").read_text().partition("\n")[0])
        parts.operations.retry(number)
    assert parts.database.job(number).tries == 2
    # A run that begins anew has other times in its first record.
    assert steps[1] >= steps[0] >= 0 and first[0] == first[1]


@pytest.mark.long
def test_jobs_go_on_when_the_warm_program_is_killed(tmp_path, graph):
    parts = make_parts(tmp_path / "queue", allowed=[graph.path.resolve().parent])
    first = submitted(parts, graph, **LONG)
    in_state(parts, first, "running")
    parts.pool._program.kill()
    second = submitted(parts, graph, **QUICK)
    assert ended(parts, first).tries == 1
    ended(parts, second)
    parts.pool.close()
    abandon(parts)


def test_a_full_disk_loses_nothing(parts, graph):
    number = submitted(parts, graph, **QUICK)
    in_state(parts, number, "running")
    pages = parts.database._connection.execute("PRAGMA page_count").fetchone()[0]
    parts.database._connection.execute(f"PRAGMA max_page_count = {pages}")
    with refused("write-failed full"):
        for seed in range(200):
            submitted(parts, graph, **QUICK, seed=seed)
    parts.database._connection.execute("PRAGMA max_page_count = 100000")
    ended(parts, number)


def test_forecasts_are_made_several_at_a_time_but_once_for_jobs_alike(parts, graph, monkeypatch):
    monkeypatch.setattr("penstock.service.scheduler.default_threads", lambda: 16)
    begun = []
    monkeypatch.setattr(parts.scheduler, "_begin", lambda record, *_: begun.append(record.document["hidden"]))
    for hidden in (4, 4, 5, 6, 7, 8):
        submitted(parts, graph, hidden=hidden)
    parts.scheduler._start_forecasts()
    assert begun == [4, 5, 6, 7]


def test_more_jobs_than_cores_wait_for_each_other(parts, graph):
    numbers = [submitted(parts, graph, **QUICK, seed=seed) for seed in range(4)]
    for number in numbers:
        parts.database.change(number, state="waiting", host_bytes=1 << 30)
    most = 0
    while any(parts.database.job(number).state not in FINAL for number in numbers):
        parts.scheduler.tick()
        most = max(most, len(parts.scheduler._active))
    assert most == 2
    assert [parts.database.job(number).state for number in numbers] == ["ended"] * 4


def test_a_job_is_given_up_when_it_is_killed_again_and_again_without_a_checkpoint(parts, graph):
    number = submitted(parts, graph, **{**ENDLESS, "checkpoint_steps": 0})
    while parts.database.job(number).state not in FINAL:
        record = in_state(parts, number, "running", *FINAL)
        if record.state == "running":
            os.kill(record.pid, signal.SIGKILL)
            until(parts, lambda: parts.database.job(number).state != "running")
    record = parts.database.job(number)
    assert record.state == "failed"
    check_refusal(record.code, record.reason, "peer-lost checkpoint_minutes")


def test_a_stopped_service_leaves_checkpoints(parts, graph):
    number = submitted(parts, graph, **ENDLESS)
    in_state(parts, number, "running")
    parts.scheduler.run(lambda: True)
    record = parts.database.job(number)
    assert record.state == "interrupted"
    assert record.step >= 0
