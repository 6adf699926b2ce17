"""What a lost first worker had not written yet is written by the next, once."""

from penstock.cluster.worker.records import LastRecords, mend_metrics, stands_at_best
from penstock.train.job import make_job
from penstock.train.records import FolderRecords
from penstock.train.run_folder import RunFolder
from penstock.train.train_state import TrainState
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
