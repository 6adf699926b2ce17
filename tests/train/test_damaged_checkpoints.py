"""A damaged checkpoint: the newest whole one takes its place, and the user hears of it."""

import math
import os
import shutil
import zipfile

import numpy as np
import pytest
import torch

from penstock import PenstockError
from penstock.api import train
from penstock.graph.files import claimed
from penstock.progress import Progress
from penstock.train.run_files.checkpoints import read_state, write_state
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


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two epochs with several checkpoints, which no test changes."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return trained(community_graph(), folder, checkpoint_steps=3, keep_checkpoints=3, hidden=1024).path


@pytest.fixture
def run(finished, tmp_path):
    """A copy of that run, for one test."""
    return shutil.copytree(finished, tmp_path / "run")


def steps_of(run):
    return sorted((run / "checkpoints").glob("step-*.ckpt"))


def damage(file):
    """Lose a stretch in the middle, as a disk does."""
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 400] = bytes(400)
    file.write_bytes(content)


def test_a_run_goes_on_from_the_newest_whole_one(graph, run, tmp_path):
    whole = trained(graph, tmp_path / "whole", epochs=3, checkpoint_steps=3, keep_checkpoints=3, hidden=1024)
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


def header_byte(file):
    """One byte of a header, of an array that is not read to its end, and its checksum, together with the header."""
    content = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as archive:
        arrays = [info for info in archive.infolist() if info.filename.endswith(".npy")]
    largest = max(arrays, key=lambda info: info.file_size)
    content[content.index(b"}", largest.header_offset)] = ord(" ")
    file.write_bytes(content)


def pipe(file):
    file.unlink()
    os.mkfifo(file)


def endless(file):
    file.unlink()
    file.symlink_to("/dev/zero")


def folder(file):
    file.unlink()
    file.mkdir()


def forged(change):
    """A file that is whole, and whose content no run can have written."""

    def damage(file):
        state = read_state(file)
        change(state)
        write_state(file, state)

    return damage


def wrong_shape(state):
    state["learned"][next(iter(state["learned"]))] = torch.zeros(3, 3, 3)


def wrong_optimiser(state):
    state["optimiser"]["state"][0]["exp_avg"] = torch.zeros(7, 5)


@pytest.mark.parametrize(
    "damage",
    [
        *(header_byte, pipe, endless, folder),
        *map(forged, (wrong_shape, wrong_optimiser)),
        forged(lambda state: state.update(tables=[np.zeros(3)])),
        forged(lambda state: state["standing"].update(step=math.nan)),
        forged(lambda state: state["standing"].update(surprise=1)),
        forged(lambda state: state.pop("optimiser")),
        forged(lambda state: state["optimiser"].update(param_groups=[])),
    ],
    ids=range(11),
)
def test_whatever_is_wrong_with_the_newest_the_one_before_takes_its_place(damage, graph, run):
    older, newest = steps_of(run)[-2:]
    damage(newest)
    progress = Noted()
    assert train(graph, resume=run, epochs=3, progress=progress).state == "finished"
    assert newest.name in progress.said[0] and f"resumes from {older.name} instead" in progress.said[0]
    assert os.path.lexists(newest.with_name(f"{newest.name}.damaged"))


@pytest.mark.parametrize("damage", [header_byte, pipe, forged(wrong_shape)], ids=["header", "pipe", "shape"])
def test_where_none_can_be_read_nothing_is_lost(damage, graph, run):
    for file in steps_of(run):
        damage(file)
    before = sorted(path.name for path in run.rglob("*"))
    with pytest.raises(PenstockError):
        train(graph, resume=run, epochs=3)
    assert sorted(path.name for path in run.rglob("*")) == before


def test_what_a_killed_process_left_half_written_is_swept(graph, run):
    """And not what a process that lives is writing."""
    for path in (run / "checkpoints" / ".step-000000000012.ckpt.writing-0123abcd", run / ".run.json.writing-00000000"):
        path.write_bytes(b"half")
    (run / ".parts.writing-11111111").mkdir()
    (run / ".parts.writing-11111111" / "x.npy").write_bytes(b"half")
    alive = run / "checkpoints" / ".best-000001.ckpt.writing-0123abce"
    alive.write_bytes(b"half")
    with claimed(alive):
        assert train(graph, resume=run, epochs=3).state == "finished"
    assert list(run.rglob("*.writing-*")) == [alive]
