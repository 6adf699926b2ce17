"""The cards of a run on several machines: tasks, traffic, and a plan beside what became of it."""

import re

import pytest

from penstock.report.cards import plan_card
from penstock.report.cluster import cluster_cards
from penstock.report.run_folder import RunRecord

TASKS = [
    {"id": "store-m0", "kind": "store", "machine": "m0", "restarts": 0, "peak_rss_mb": 100.0},
    {"id": "worker-0", "kind": "worker", "machine": "m1", "restarts": 1, "peak_rss_mb": 200.0},
]
PREDICTED = {
    "placement": "search",
    "flows": "iteration-first",
    "iteration_s": 0.1,
    "epoch_s": 2.0,
    "lower_bound_s": 0.09,
}


def cards_of(result: dict) -> list[str]:
    """Of a run that is known by its result alone."""
    run = object.__new__(RunRecord)
    run.result = result
    return [plain(card) for card in (plan_card(run), *cluster_cards(run)) if card]


def plain(card: str) -> str:
    """Without what only serves the layout: where names may be broken, spaces that stay, names of cells."""
    return re.sub(r' data-name="[^"]*"', "", card.replace("<wbr>", "").replace("\u00a0", " "))


def cards(**result) -> str:
    return "".join(cards_of({"tasks": TASKS, **result}))


def test_a_plan_stands_beside_what_became_of_it() -> None:
    shown = cards(predicted=PREDICTED, epoch_seconds=[9.0, 2.1, 2.2])
    assert "Plan" in shown and "placement search, flows iteration-first" in shown
    assert "2.2 s (+10.0 %)" in shown


@pytest.mark.parametrize("result", [{}, {"predicted": PREDICTED}, {"predicted": "x", "epoch_seconds": [1.0]}])
def test_without_both_there_is_no_such_card(result: dict) -> None:
    shown = cards(**result)
    assert "as planned" not in shown and "worker-0" in shown


def test_coflows_are_shown_with_their_times() -> None:
    batch = {"kind": "batch", "count": 1200, "bytes": 3 << 20, "mean_cct_s": 0.25, "p95_cct_s": 0.5}
    shown = cards(bytes_received=10, coflows=[batch])
    assert "95 of 100 within" in shown and "<td>batch</td><td>1,200</td><td>3 MiB</td>" in shown
    assert "95 of 100" not in cards(bytes_received=10, coflows="none")


def test_bytes_are_shown_by_what_they_were_for() -> None:
    shown = cards(batch_bytes={"rows": 3 << 20, "lists": 1 << 20, "blocks": 0, "explanations": 2048})
    assert "features for batches" in shown and "3 MiB" in shown and "neighbour lists for batches" in shown
    assert "for explanations" in shown and "2 KiB" in shown and "sampler tasks" not in shown
    assert "neighbour lists for batches" not in cards(bytes_received=10, batch_bytes="none")


def test_caches_of_remote_rows_are_shown_by_worker() -> None:
    cached = {"id": "worker-1", "remote_cache": {"hits": 3000, "misses": 1000, "bytes_saved": 2 << 20}}
    shown = cards(tasks=[*TASKS, cached], bytes_received=10)
    assert "<td>worker-1</td><td>3,000</td><td>1,000</td><td>75 %</td><td>2 MiB</td>" in shown
    assert "not sent" not in cards(bytes_received=10)


def test_paths_of_features_are_shown_by_worker() -> None:
    came = {"owner": {"rows": 10, "bytes": 1 << 20, "seconds": 0.5}, "replica": {"rows": 2000, "bytes": 2 << 20}}
    shown = cards(tasks=[*TASKS, {"id": "worker-1", "feature_paths": came}], bytes_received=10)
    assert "<td>worker-1</td><td>owner</td><td>10</td><td>1 MiB</td><td>500 ms</td>" in shown
    assert "<td>worker-1</td><td>replica</td><td>2,000</td><td>2 MiB</td>" in shown
    assert "features of" not in cards(bytes_received=10)


def test_nothing_of_a_cluster_for_one_machine() -> None:
    assert cards_of({}) == []


def test_small_amounts_are_not_rows_of_zeros() -> None:
    flows = {"a>b": [2048, 12], "b>c": [0, 0], "c>d": [3 << 20, 0]}
    shown = cards(bytes_received=1000, bytes_minimum=1000.2, flows=flows)
    assert "<td>a&gt;b</td><td>2 KiB</td><td>12 B</td>" in shown
    assert "<td>3 MiB</td><td>0 B</td>" in shown
    assert "b&gt;c" not in shown and ">0 MiB" not in shown
    assert "(0 %)" not in shown and "1e+03" not in shown


@pytest.mark.parametrize(
    ("received", "said"),
    [
        (1000.0, "no row came twice"),
        (1000.2, "no row came twice"),
        (1004.0, "0.4 % more was received"),
        (1500.0, "50 % more was received"),
        (600.0, "40 % less was received"),
    ],
)
def test_what_was_received_stands_beside_each_row_once(received: float, said: str) -> None:
    shown = cards(bytes_received=received * (1 << 20), bytes_minimum=float(1000 << 20))
    assert f"each row once for each batch</dt><dd>1000 MiB: {said}</dd>" in shown


def test_a_task_without_a_measured_peak_says_so() -> None:
    tasks = [{"id": "store-m0", "machine": "m0", "restarts": 0, "peak_rss_mb": 0.0}]
    shown = "".join(cards_of({"tasks": tasks}))
    assert "<td>not measured</td>" in shown
    assert "1 task on 1 machine, none lost" in shown
