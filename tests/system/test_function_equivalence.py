"""A user's loss, metric and callback, and weights of classes, on a cluster: the run of one machine."""

import pytest

from cluster_runs import JOB, assert_same_losses, cluster_file, in_parts, machines, run_on
from penstock.api import train
from penstock.report.run_folder import read_trace
from refusals import refused
from training_graphs import community_graph, lines_of, trained

CODE = """
from pathlib import Path
from torch.nn import functional

def smoothed(outputs, labels):
    return functional.cross_entropy(outputs, labels, label_smoothing=0.1, reduction="none")

def first_share(outputs, labels):
    return (outputs.argmax(1) == 0).mean()

def second_epoch(result):
    with (result.run / "told.txt").open("a") as file:
        print(result.epoch, file=file)
    return result.epoch == 2
"""


@pytest.mark.parametrize("way", ["loss", pytest.param("class_weights", marks=pytest.mark.long)])
def test_two_workers_do_as_one_machine_does(tmp_path, way):
    file = tmp_path / "mine.py"
    file.write_text(CODE)
    fields = {"metrics": [f"{file}:first_share"], "callbacks": [f"{file}:second_epoch"], "epochs": 4}
    fields |= {"loss": f"{file}:smoothed"} if way == "loss" else {"class_weights": "balanced"}
    saved = community_graph().save(tmp_path / "graph")
    one = trained(saved, tmp_path / "one", **{**JOB, **fields})
    cluster = cluster_file(tmp_path, partition=in_parts(saved, 2, tmp_path), machines=machines(1, 1))
    run = run_on(cluster, saved.path, tmp_path / "run", **fields)
    assert one.state == run.facts["state"] == "stopped-early"
    assert_same_losses(run.path, one.path, 1e-4)
    assert run.facts["result"]["val"] == pytest.approx(one.val, abs=1e-4) and "first_share" in one.val
    # The page's timeline is of both, and what the cluster decided is not listed as chosen.
    assert {bar.worker for bar in read_trace(run.path / "events.jsonl").bars} == {"worker-0", "worker-1"}
    assert run.facts["decided"] == {}
    # One of the workers calls back.
    for path in (one.path, run.path):
        assert (path / "told.txt").read_text().split() == ["1", "2"]
        assert len((path / "metrics.csv").read_text().splitlines()) == 3
        assert sum(record["kind"] == "epoch" for record in lines_of(path)) == 2


def test_a_cluster_takes_no_objects(tmp_path):
    with refused("unsupported-combination FILE.py:NAME callbacks"):
        train(community_graph(), cluster="1x2", callbacks=[print], run=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
