"""Pages of small and unfinished runs: one or two epochs, one batch in each, graphs without a name, Ctrl-C."""

import json

import pytest
import yaml
from synthetic_runs import DEFAULTS, write_run
from test_report_page import page_of

from penstock.report.charts import ThreadLane, Window, numbering, timeline_chart
from penstock.report.run_folder import Bar, read_run


def test_two_epochs_have_a_shortest_and_a_longest_and_no_half(tmp_path):
    text = page_of(write_run(tmp_path / "run", epochs=2)).text
    assert "The shortest epoch took 4.34 s, the longest 5.43 s." in text
    assert "Half of" not in text and "median" not in text


def test_the_median_is_the_middle_of_many_epochs(tmp_path):
    folder = write_run(tmp_path / "run", epochs=6)
    seconds = sorted(each.seconds for each in read_run(folder).log.epochs)
    middle = (seconds[2] + seconds[3]) / 2
    assert f"The median epoch took {middle:.3g} s" in page_of(folder).text


@pytest.mark.parametrize(
    ("name", "graph", "title"),
    [
        ("pyg", "pyg (in memory)", "sage on a PyG graph"),
        ("dgl", "dgl (in memory)", "sage on a DGL graph"),
        ("pyg", "/data/my-shop", "sage on my-shop"),
        ("my graph", "my graph (in memory)", "sage on my graph"),
    ],
)
def test_a_graph_without_a_name_is_not_titled_by_its_library(tmp_path, name, graph, title):
    folder = write_run(tmp_path / "run", graph={"name": name, "nodes": {"node": 1}, "edges": {"e": 1}})
    job = yaml.safe_load((folder / "job.yaml").read_text())
    (folder / "job.yaml").write_text(yaml.safe_dump({**job, "graph": graph}))
    text = page_of(folder).text
    assert text.startswith(f"{title} finished")
    assert "· 1 vertex · 1 edge" in text


def with_values(folder, metrics):
    """The run's epochs with other validation metrics, functions of the accuracy."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if "val" in line:
            line["val"] = {name: value(line["val"]["accuracy"]) for name, value in metrics.items()}
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def test_each_metric_has_its_chart_and_equal_ones_share_it(tmp_path):
    metrics = {"accuracy": float, "macro-f1": lambda value: value - 0.1, "micro-f1": float, "loss": lambda v: 9 - v}
    html = page_of(with_values(write_run(tmp_path / "run"), metrics)).raw
    for said in ("Validation accuracy and micro F1 (equal)", "Validation macro F1", "Validation loss"):
        assert html.count(f'aria-label="{said}"') == 1
    assert 'aria-label="Validation micro F1"' not in html
    # The metric that decides is drawn first, and marked there alone.
    assert html.index("Validation accuracy") < html.index("Validation macro F1")
    assert html.count('class="best ') == 1


def test_metrics_that_differ_once_are_drawn_apart(tmp_path):
    metrics = {"accuracy": float, "micro-f1": lambda value: value if value < 0.7 else value + 0.001}
    html = page_of(with_values(write_run(tmp_path / "run"), metrics)).raw
    assert 'aria-label="Validation micro F1"' in html


@pytest.mark.parametrize(
    ("places", "counted_as", "shown"),
    [
        ([(0, 0), (0, 1)], "batches", ["1", "2"]),
        ([(0, 0), (1, 0)], "epochs", ["1", "2"]),
        ([(0, 1), (1, 0)], "epoch.batch", ["1.2", "2.1"]),
    ],
)
def test_bars_are_numbered_so_that_they_can_be_told_apart(places, counted_as, shown):
    bars = [Bar("compute", "t", at * 10.0, 9.0, epoch, batch) for at, (epoch, batch) in enumerate(places)]
    window = Window(0.0, 20.0, [ThreadLane("t", bars)], 0)
    assert numbering(window) == counted_as
    drawn = timeline_chart(window)
    assert [drawn.count(f">{text}</span>") for text in shown] == [1, 1]
    assert f"epoch {places[1][0] + 1}, batch {places[1][1] + 1}" in drawn


def test_an_interrupted_run_shows_how_far_it_came(tmp_path):
    result = {"run": "runs/x", "epochs": 2, "steps": 30, "steps_planned": 288, "val": {}, "test": {}}
    folder = write_run(tmp_path / "run", epochs=2, state="interrupted", message="Interrupted at epoch 3, batch 7.",
                       result=result)  # fmt: skip
    job = yaml.safe_load((folder / "job.yaml").read_text())
    (folder / "job.yaml").write_text(yaml.safe_dump({**job, "epochs": 24}))
    text = page_of(folder, DEFAULTS).text
    assert "Interrupted at epoch 3, batch 7. The page shows what was done until then" in text
    assert "penstock train --resume runs/x" in text
    assert "epochs 2 of 24" in text and "batches 30 of 288" in text
    assert "validation accuracy so far" in text


def test_an_interrupted_first_epoch_shows_its_loss(tmp_path):
    result = {"epochs": 0, "steps": 3, "steps_planned": 240, "loss_so_far": 1.2345, "val": {}, "test": {}}
    folder = write_run(tmp_path / "run", epochs=1, state="interrupted", result=result)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:2]))
    text = page_of(folder).text
    assert "1.234 training loss" in text or "1.235 training loss" in text
    assert "epochs 0 of 1" in text and "batches 3 of 240" in text
