"""Epochs that a job leaves open are decided by the graph and the split; too few steps are spoken of."""

import json
from dataclasses import replace

import pytest
import yaml

from forks import forked_command
from penstock import train
from penstock.progress import Progress
from penstock.train.assembly import auto_epochs, few_steps_note
from penstock.train.job import job_of, make_job
from penstock.train.run_files.checkpoints import TrainState
from refusals import refused
from training_graphs import SMALL, community_graph, facts_of, lines_of


class Notes(Progress):
    """Keeps notes."""

    def note(self, sentence):
        self.notes.append(sentence)


@pytest.mark.parametrize(
    "batches, size, epochs",
    [
        (1, 10_000, 150),
        (4, 10_000, 38),
        (14, 10_000, 11),
        (15, 10_000, 10),
        (88, 2_500_000, 10),
        (1, 20_000_000, 50),
        (1, 10**9, 10),
        (0, 0, 150),
    ],
)
def test_epochs_by_size_of_split_and_graph(batches, size, epochs):
    assert auto_epochs(batches, size) == epochs


def test_decided_epochs_are_said_and_written_down(tmp_path):
    """About 110 training vertices in batches of 16: 7 batches, and so 22 epochs, also for who goes on."""
    graph, said = community_graph().save(tmp_path / "graph"), Notes()
    fields = {**SMALL, "epochs": "auto", "hidden": 4}
    run = train(graph, run=str(tmp_path / "run"), progress=said, **fields)
    assert run.result["epochs"] == 22 and run.result["steps"] == 154
    assert facts_of(run.path)["decided"] == {"epochs": 22}
    assert yaml.safe_load((run.path / "job.yaml").read_text())["epochs"] == 22
    assert said.notes == ["An epoch has 7 batches: training for 22 epochs (154 steps; epochs: auto)."]
    again = train(resume=run.path, epochs="23")
    assert again.result["epochs"] == 23
    with refused("invalid-value"):
        train(resume=run.path, epochs="auto")


def test_a_number_of_epochs_is_kept(tmp_path):
    said = Notes()
    run = train(community_graph(), run=str(tmp_path / "run"), progress=said, **{**SMALL, "epochs": 3, "lr": 1e-3})
    assert run.result["epochs"] == run.result["best_epoch"] == 3 and facts_of(run.path)["decided"] == {}
    sentence = (
        "The run ended after 21 steps (3 epochs of 7 batches), and its last validation was the best: it may still learn"
        " with epochs 22."
    )
    assert said.notes == [sentence] and run.result["notes"] == [sentence]
    assert sentence in (run.path / "report.html").read_text()
    assert len([line for line in lines_of(run.path) if line["kind"] == "epoch"]) == 3


def test_whether_validation_still_improves_decides():
    """A model that has learned in a few steps of the whole graph is not told that they are too few."""
    job = make_job({"epochs": 40})
    learned = TrainState(epoch=40, step=40, best_epoch=31)
    assert few_steps_note(job, learned, 1) is None
    assert "last validation was the best" in few_steps_note(job, replace(learned, best_epoch=40), 1)
    assert few_steps_note(job, replace(learned, best_epoch=40, step=160), 4) is None
    unseen = job.model_copy(update={"evaluate_every": -1})
    assert "nothing was validated" in few_steps_note(unseen, replace(learned, best_epoch=-1), 1)
    assert few_steps_note(unseen, replace(learned, best_epoch=-1, step=50), 1) is None


def test_who_stops_early_or_has_learned_hears_nothing(tmp_path):
    fields = {**SMALL, "epochs": 60, "batch_size": 16, "hidden": 4, "patience": 1, "lr": 0.1}
    run = train(community_graph(), run=str(tmp_path / "run"), **fields)
    assert run.state == "stopped-early" and run.result["notes"] == []


def test_the_command_takes_auto_and_lists_notes(tmp_path):
    graph = community_graph().save(tmp_path / "graph")
    given = ["--fanouts", "4,3", "--hidden", "4", "--batch-size", "16", "--threads", "1", "--epochs"]
    command = ["train", "--graph", graph.path, "--json", "--run", tmp_path / "run", *given]
    done = forked_command(*command, "auto")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["epochs"] == 22 and any("epochs: auto" in note for note in answer["notes"])
    refused = forked_command(*command, "0")
    assert refused.returncode == 2 and "epochs: must be auto, or at least 1" in refused.stderr


@pytest.mark.parametrize("epochs", [0, -1, "0", "some", 1.5, None])
def test_what_is_no_number_of_epochs(epochs):
    with refused("invalid-document epochs"):
        make_job({"epochs": epochs})


def test_a_job_is_read_as_it_was_written():
    job = make_job({})
    assert job.model_dump()["epochs"] == "auto"
    assert job_of(job.model_dump()) == job and make_job({"epochs": "7"}).epochs == 7
