"""What a lost first worker had not written yet is written by the next, once."""

from types import SimpleNamespace

from penstock.cluster.reports import Heartbeat
from penstock.cluster.tasks.worker import LastRecords, mend_metrics, stands_at_best
from penstock.report.charts import steady_window
from penstock.report.run_folder import read_trace
from penstock.train.job import make_job
from penstock.train.run_files.checkpoints import TrainState
from penstock.train.run_files.records import EventLog, FolderRecords, add_workers
from penstock.train.run_files.run_folder import RunFolder
from training_graphs import lines_of


def step(number):
    """A line of metrics."""
    return {"kind": "step", "step": number, "loss": 1.0}


def epoch(number):
    """A line of metrics."""
    return {"kind": "epoch", "step": number, "loss": 1.0}


def folder_with(path, *lines):
    """A run's folder with lines of metrics, and its records."""
    job = make_job({"graph": "g", "fanouts": [2], "run": str(path / "run")})
    folder = RunFolder.create(job, "run", False)
    for line in lines:
        folder.append_metrics(line)
    folder.close()
    return folder, FolderRecords(folder, job)


def names(folder):
    """Kinds and steps of what is recorded."""
    return [(line["kind"], line["step"]) for line in lines_of(folder.path)]


def remembered():
    """What a worker remembers that has done four steps and ended an epoch with the last."""
    last = LastRecords()
    for line in (step(3), step(4), epoch(4)):
        last.append_metrics(line)
    return last.metrics


def test_missing_lines_are_written(tmp_path):
    folder, records = folder_with(tmp_path, step(3))
    mend_metrics(records, folder, TrainState(step=4), remembered())
    assert names(folder) == [("step", 3), ("step", 4), ("epoch", 4)]


def test_what_is_there_is_not_written_twice(tmp_path):
    folder, records = folder_with(tmp_path, step(3), step(4), epoch(4))
    mend_metrics(records, folder, TrainState(step=4), remembered())
    assert names(folder) == [("step", 3), ("step", 4), ("epoch", 4)]


def test_what_will_happen_again_is_forgotten(tmp_path):
    """The lost worker had ended an epoch that the others have not, and had begun a step of the next."""
    folder, records = folder_with(tmp_path, step(3), step(4), epoch(4), step(5))
    mend_metrics(records, folder, TrainState(step=4, ending=True), [])
    assert names(folder) == [("step", 3), ("step", 4)]


def test_only_the_last_step_is_remembered():
    last = LastRecords()
    for line in (step(4), epoch(4), step(5)):
        last.append_metrics(line)
    assert last.metrics == [step(5)]


def test_a_fresh_run_has_nothing_to_mend(tmp_path):
    folder, records = folder_with(tmp_path)
    mend_metrics(records, folder, TrainState(), [])
    assert not (folder.path / "metrics.jsonl").exists()


def test_best_model_is_that_of_the_moment_until_the_next_step():
    assert stands_at_best(TrainState(step=8, epoch=2, batch=0, best_epoch=2))
    assert not stands_at_best(TrainState(step=9, epoch=2, batch=1, best_epoch=2))
    assert not stands_at_best(TrainState(step=8, epoch=2, batch=0, best_epoch=1))
    assert not stands_at_best(TrainState(step=8, epoch=2, batch=0, best_epoch=2, ending=True))
    assert not stands_at_best(TrainState())


def do_batches(events, count, clock, slower=0.0):
    """Three stages on so many batches, a second each, which end with what all workers do together."""
    for batch in range(count):
        item = SimpleNamespace(position=(0, batch))
        events.record("sample", 0, clock + batch, clock + batch + 0.2 + slower, item)
        events.record("compute", 0, clock + batch + 0.3 + slower, clock + batch + 0.9, item)


def test_another_workers_work_stands_beside_the_firsts_in_the_trace(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path, 1000, 12, 0.0)
    do_batches(log, 12, clock=5.0)
    log.close()
    last = LastRecords(1000)
    # Its clock is 700 s behind, and its sampling slower.
    do_batches(last.events(12, began=100.0), 12, clock=105.0 - 700.0, slower=0.1)
    told = Heartbeat(incarnation=0, spans=last.spans())
    add_workers(path, {1: told.spans})
    bars = read_trace(path).bars
    assert {bar.worker for bar in bars} == {"worker-0", "worker-1"}
    ends = {(bar.worker, bar.batch): bar.end for bar in bars if bar.stage == "compute"}
    assert all(ends["worker-0", batch] == ends["worker-1", batch] for batch in range(12))
    window = steady_window(read_trace(path))
    assert [lane.name for lane in window.lanes] == [
        "worker-0: sample 0", "worker-0: compute 0", "worker-1: sample 0", "worker-1: compute 0",
    ]  # fmt: skip
    assert {bar.duration for bar in window.lanes[2].bars} == {300_000.0}


def test_what_another_worker_keeps_has_a_bound(tmp_path):
    last = LastRecords(1000)
    events = last.events(5000, began=0.0)
    do_batches(events, 5000, clock=0.0)
    assert len(last.spans()) == 2 * 100
    # A round that begins anew has times of its own.
    last.events(5000, began=0.0)
    assert last.spans() == []
    none = LastRecords()
    do_batches(none.events(12, 0.0), 12, clock=0.0)
    assert none.spans() == []


def test_a_worker_without_a_common_step_is_left_out(tmp_path):
    path = tmp_path / "events.jsonl"
    add_workers(path, {1: [[1, 0, 0, 5, 0, 0]]})
    assert not path.exists()
    log = EventLog(path, 1000, 12, 0.0)
    do_batches(log, 2, clock=0.0)
    log.close()
    add_workers(path, {1: [[1, 0, 0, 5, 0, 0], [4, 0, 9, 5, 7, 7]]})
    assert {bar.worker for bar in read_trace(path).bars} == {"worker-0"}
