"""A damaged checkpoint: the newest whole one takes its place, and the user hears of it."""

import pytest

from penstock.api import train
from penstock.progress import Progress
from penstock.train.use import evaluate_run
from refusals import refused
from training_graphs import assert_same_state, community_graph, newest_checkpoint, trained


class Noted(Progress):
    """Remembers what the user is told."""

    def __init__(self):
        super().__init__()
        self.said = []

    def note(self, sentence):
        self.said.append(sentence)


@pytest.fixture
def graph():
    return community_graph()


@pytest.fixture
def run(graph, tmp_path):
    """A run of two epochs with several checkpoints."""
    return trained(graph, tmp_path / "run", checkpoint_steps=3, keep_checkpoints=3).path


def steps_of(run):
    return sorted((run / "checkpoints").glob("step-*.ckpt"))


def damage(file):
    """Lose a stretch in the middle, as a disk does."""
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 400] = bytes(400)
    file.write_bytes(content)


def test_a_run_goes_on_from_the_newest_whole_one(graph, run, tmp_path):
    whole = trained(graph, tmp_path / "whole", epochs=3, checkpoint_steps=3, keep_checkpoints=3)
    older, damaged, cut_off = steps_of(run)
    damage(damaged)
    cut_off.write_bytes(cut_off.read_bytes()[:100])
    progress = Noted()
    assert train(graph, resume=run, epochs=3, progress=progress).state == "finished"
    first, second, third = progress.said[:3]
    assert cut_off.name in first and "is damaged" in first and f"resumes from {older.name} instead" in first
    assert damaged.name in second and f"resumes from {older.name} instead" in second
    assert third.startswith(f"Resuming from {older.name}")
    assert_same_state(newest_checkpoint(whole.path), newest_checkpoint(run))
    # Set aside, lest they count among those that are kept.
    assert sorted(path.name for path in (run / "checkpoints").glob("*.damaged")) == [
        f"{damaged.name}.damaged",
        f"{cut_off.name}.damaged",
    ]
    assert len(steps_of(run)) == 3


def test_a_model_is_read_from_the_newest_whole_one(graph, run):
    damage(steps_of(run)[-1])
    progress = Noted()
    assert evaluate_run(run, ["test"], graph, progress=progress)["test"]
    (said,) = progress.said
    assert "is damaged" in said and f"{steps_of(run)[-2].name} is used instead" in said
    # Nothing of a run that is only looked at is changed.
    assert not list((run / "checkpoints").glob("*.damaged"))


@pytest.mark.parametrize("gone", [True, False])
def test_a_best_model_that_is_damaged_or_gone(gone, graph, run):
    best = max((run / "checkpoints").glob("best-*.ckpt"))
    best.unlink() if gone else damage(best)
    progress = Noted()
    assert evaluate_run(run, ["test"], graph, progress=progress)["test"]
    assert any(best.name in said and "an older model is used instead of the best" in said for said in progress.said)


def test_where_none_is_whole_the_advice_can_be_followed(graph, run):
    for file in steps_of(run):
        damage(file)
    with refused("damaged-file"):
        train(graph, resume=run, epochs=3)
    assert len(steps_of(run)) == 3
