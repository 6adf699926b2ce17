"""Reading run folders that are whole, going, broken off, or large."""

import json
import re

import pytest
from synthetic_runs import STAGES, write_events, write_run

from penstock.report import read_run
from penstock.report.charts import steady_window
from penstock.report.run_folder import MOST_STEPS, SMALL_FILE, read_metrics, read_trace
from refusals import refused


def test_a_finished_run(tmp_path):
    run = read_run(write_run(tmp_path / "run", epochs=24))
    assert run.state == "finished"
    assert len(run.log.epochs) == 24
    assert run.best.epoch == run.result["best_epoch"]
    assert [each.name for each in run.stages] == list(STAGES)
    assert run.limiting.name == "compute"
    assert run.limiting.share == pytest.approx(0.96)
    assert run.seconds == pytest.approx(24 * 4.4)
    assert run.problems == []


def test_a_running_run_is_summed_from_its_epochs(tmp_path):
    run = read_run(write_run(tmp_path / "run", epochs=3, state="running"))
    assert run.seconds == pytest.approx(13.2)
    assert run.limiting.name == "compute"
    assert run.limiting.busy_s == pytest.approx(3 * 4.2 * 0.96)
    assert run.best.epoch == 3
    assert run.peak_rss_mb > 1900


def test_shares_of_stages_are_of_one_time_and_the_largest_limits(tmp_path):
    # Sampling was busy nearly all of the time that it counted, which was less than the training took.
    stages = {
        "sample": {"busy_s": 19.4, "wait_s": 0.6, "threads": 2, "depth": 2},
        "compute": {"busy_s": 13.95, "wait_s": 1.05, "threads": 1, "depth": 1},
    }
    run = read_run(write_run(tmp_path / "run", result={"stages": stages, "limiting_stage": "compute"}))
    assert run.training_s == pytest.approx(15.0)
    assert {each.name: round(each.share, 3) for each in run.stages} == {"sample": 0.647, "compute": 0.93}
    assert run.limiting.name == "compute" == max(run.stages, key=lambda each: each.share).name
    # What a stage does during validations, which no training waits for, does not exceed the whole.
    stages["sample"]["busy_s"] = 40.0
    run = read_run(write_run(tmp_path / "more", result={"stages": stages}))
    assert (run.limiting.name, run.limiting.share) == ("sample", 1.0)


def test_lower_is_better(tmp_path):
    metric = {"name": "accuracy", "better": "lower"}
    assert read_run(write_run(tmp_path / "run", epochs=3, state="running", metric=metric)).best.epoch == 1


def test_a_folder_with_nothing_but_run_json(tmp_path):
    (tmp_path / "run.json").write_text('{"format": "penstock-run", "version": 1}')
    run = read_run(tmp_path)
    assert (run.state, run.best, run.limiting, run.seconds, run.peak_rss_mb) == ("unknown", None, None, None, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "wrong-file"),
        ("{", "damaged-file"),
        ("[]", "wrong-file penstock-run"),
        ('{"format": "penstock-graph", "version": 1}', "wrong-file penstock-run"),
        ('{"format": "penstock-run", "version": 7}', "unsupported-version 7"),
    ],
)
def test_what_is_no_run_folder_is_refused(tmp_path, text, words):
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with refused(words):
        read_run(tmp_path)


def test_a_line_half_written_is_left_out_and_a_broken_one_is_counted(tmp_path):
    path = write_run(tmp_path / "run", epochs=2) / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"kind": "epoch", "epoch": 3, "lo')
    assert len(read_metrics(path).epochs) == 2
    assert read_metrics(path).unreadable == 0
    path.write_text("garbage\n" + whole)
    assert len(read_metrics(path).epochs) == 2
    assert "1 line of metrics.jsonl" in read_run(path.parent).problems[0]


def test_broken_settings_are_a_note(tmp_path):
    folder = write_run(tmp_path / "run", epochs=1)
    (folder / "job.yaml").write_text("a: [")
    run = read_run(folder)
    assert run.job == {}
    assert "job.yaml" in run.problems[0]


def test_what_a_resumed_run_does_again_replaces_what_it_had_done(tmp_path):
    records = [{"kind": "epoch", "epoch": e - 1, "step": 10 * e, "time": 5.0 * e, "loss": 9.0} for e in (1, 2, 3)]
    records += [{"kind": "step", "epoch": 3, "step": s, "time": 15.0, "loss": 9.0} for s in (5, 25, 30)]
    records += [{"kind": "resumed", "time": 0.0, "epoch": 1, "step": 10}]
    records += [{"kind": "epoch", "epoch": 1, "step": 20, "time": 4.0, "loss": 1.0}]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    log = read_metrics(path)
    assert [(each.epoch, each.loss) for each in log.epochs] == [(1, 9.0), (2, 1.0)]
    assert [step for step, _ in log.steps] == [5]
    assert log.seconds == 19.0
    assert log.notes == [(15.0, "Resumed at epoch 2, step 10.")]


def test_losses_within_epochs_are_bounded(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"kind": "step", "step": {step}, "loss": 1.0}}\n' for step in range(3 * MOST_STEPS)))
    steps = [step for step, _ in read_metrics(path).steps]
    assert MOST_STEPS // 2 <= len(steps) <= MOST_STEPS
    assert steps == sorted(steps)
    assert steps[-1] > 2.99 * MOST_STEPS
    assert steps[0] < 10


def test_a_small_trace_is_read_whole(tmp_path):
    write_events(tmp_path / "events.jsonl", epochs=3, batches=10)
    with (tmp_path / "events.jsonl").open("a") as lines:
        lines.write('{"name": "compute", "ph": "X", "ts": 1')
    trace = read_trace(tmp_path / "events.jsonl")
    assert len(trace.bars) == 3 * 10 * 4
    assert len(trace.memory) == 30
    assert trace.memory[0][0] == 0.0
    assert {bar.thread for bar in trace.bars} == {"seeds 0", "sample 0", "sample 1", "gather 0", "compute 0"}


def test_of_a_large_trace_only_some_is_read(tmp_path):
    path = tmp_path / "events.jsonl"
    write_events(path, epochs=40, batches=250, padding=300)
    size = path.stat().st_size
    assert size > 3 * SMALL_FILE
    trace = read_trace(path)
    assert len(trace.bars) < 10_000
    assert 100 < len(trace.memory) < 5_000
    # From one end of the run to the other.
    assert trace.memory[-1][0] > 0.98 * 40 * 250 * 0.35
    assert trace.memory == sorted(trace.memory, key=lambda each: each[0])
    epochs = {bar.epoch for bar in trace.bars}
    assert 0 in epochs
    assert 20 in epochs
    assert 39 not in epochs


def test_memory_goes_on_where_a_resumed_clock_begins_anew(tmp_path):
    counters = [{"ph": "C", "name": "memory", "ts": ts, "args": {"rss_mb": 1.0}} for ts in (5e6, 9e6, 1e6, 2e6)]
    (tmp_path / "e").write_text("[\n" + "".join(json.dumps(each) + ",\n" for each in counters))
    assert [at for at, _ in read_trace(tmp_path / "e").memory] == [0.0, 4.0, 4.0, 5.0]


def test_the_window_is_within_one_epoch_and_a_lane_is_a_thread(tmp_path):
    write_events(tmp_path / "events.jsonl", epochs=5, batches=12)
    window = steady_window(read_trace(tmp_path / "events.jsonl"))
    assert [lane.name for lane in window.lanes] == ["seeds 0", "sample 0", "sample 1", "gather 0", "compute 0"]
    batches = [(bar.epoch, bar.batch) for bar in window.lanes[-1].bars]
    assert len(batches) == 8
    assert len({epoch for epoch, _ in batches}) == 1
    assert all(bar.end >= window.start and bar.start <= window.end for lane in window.lanes for bar in lane.bars)


def test_the_window_is_where_every_batch_was_recorded(tmp_path):
    path = tmp_path / "events.jsonl"
    write_events(path, epochs=20, batches=100)
    sparse = [line for line in path.read_text().splitlines() if _batch(line) is None or _batch(line) % 50 == 0]
    dense = tmp_path / "dense.jsonl"
    write_events(dense, epochs=1, batches=20)
    path.write_text("\n".join([*dense.read_text().splitlines(), *sparse[1:]]) + "\n")
    batches = [bar.batch for bar in steady_window(read_trace(path)).lanes[-1].bars]
    assert batches == list(range(batches[0], batches[0] + 8))
    assert 0 < batches[0] < 12


def _batch(line):
    found = re.search(r'"batch": (\d+)', line)
    return int(found[1]) if found else None


def test_a_number_given_to_another_thread_after_resuming(tmp_path):
    names = [{"ph": "M", "name": "thread_name", "tid": 1, "args": {"name": name}} for name in ("sample 0", "gather 0")]
    bars = [{"ph": "X", "name": "x", "ts": at, "dur": 5, "tid": 1} for at in (0, 9)]
    lines = [names[0], bars[0], names[1], bars[1]]
    (tmp_path / "e").write_text("[\n" + "".join(json.dumps(each) + ",\n" for each in lines))
    assert [bar.thread for bar in read_trace(tmp_path / "e").bars] == ["sample 0", "gather 0"]


def test_a_resumed_run_forgets_the_result_it_was_interrupted_with(tmp_path):
    folder = write_run(tmp_path / "run", epochs=3, state="running", result={"epochs": 1, "best_epoch": 1})
    assert read_run(folder).best.epoch == 3


def test_events_that_are_not_ours_do_no_harm(tmp_path):
    lines = ['{"ph": "X"}', '{"ph": "X", "name": 3, "ts": "a", "dur": null, "tid": []}', "3", '{"ph": "C", "args": 4}']
    lines += ['{"ph": "X", "name": "mine", "ts": 0, "dur": 5, "tid": 1}', "]"]
    (tmp_path / "e").write_text("[\n" + ",\n".join(lines))
    window = steady_window(read_trace(tmp_path / "e"))
    assert [lane.name for lane in window.lanes] == ["thread 1"]
