"""What a run tells while it goes on."""

import math
import re
import weakref

from penstock.progress import Progress
from penstock.train import loop
from penstock.train.session import Session
from penstock.train.steps.one_by_one import LearnAlone
from training_graphs import community_graph, lines_of, trained


class Listener(Progress):
    """Keeps the status lines."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def status(self, line):
        self.lines.append(line)


def told(run, **fields):
    """The status lines of a small run: 25 batches an epoch, of which every second is recorded."""
    listener = Listener()
    trained(community_graph(), run, batch_size=4, evaluate_every=2, progress=listener, **fields)
    return listener.lines


def test_long_epochs_are_told_about_in_their_middle(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_SOON", 0)
    lines = told(tmp_path / "run", epochs=3)
    batches = [re.match(r"epoch (\d)/3(?:, batch (\d+)/25)?: ", line).groups() for line in lines]
    # Steps count through the run: in the second epoch they are even at its odd batches, and 50 ends it.
    middles = [range(2, 25, 2), range(1, 25, 2), range(2, 25, 2)]
    assert batches == [
        (str(epoch), where)
        for epoch, middle in enumerate(middles, 1)
        for where in [*(str(batch) for batch in middle), None]
    ]
    assert all(re.search(r": loss \d\.\d{4}.*, [\d,]+ seeds/s", line) for line in lines)


def test_the_loss_in_the_middle_is_the_mean_so_far_and_the_metric_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_SOON", 0)
    lines = told(tmp_path / "run", epochs=3)
    records = lines_of(tmp_path / "run")
    # The second epoch's first middle is its first batch, whose own loss was recorded.
    (first,) = [record["loss"] for record in records if record["kind"] == "step" and record["step"] == 26]
    (line,) = [line for line in lines if line.startswith("epoch 2/3, batch 1/25: ")]
    assert f": loss {first:.4f}, " in line
    (val,) = [record["val"] for record in records if record["kind"] == "epoch" and record["epoch"] == 1]
    assert not any("val accuracy" in line for line in lines if line.startswith(("epoch 1/3", "epoch 2/3,")))
    later = [line for line in lines if line.startswith("epoch 3/3,")]
    assert len(later) == 12
    assert all(f", val accuracy {val['accuracy']:.4f}, " in line for line in later)


def test_of_epochs_that_end_soon_only_the_end_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_SOON", math.inf)
    lines = told(tmp_path / "run", epochs=3)
    assert [line.split(":")[0] for line in lines] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert all(" limits, " in line for line in lines)


def test_no_batch_is_held_during_a_validation(tmp_path, monkeypatch):
    batches, held = list[weakref.ref](), list[int]()
    learn, evaluate = LearnAlone.__call__, Session.evaluate

    def noting(self, loaded):
        batches.append(weakref.ref(loaded.batch))
        return learn(self, loaded)

    def counting(self, *given, **named):
        held.append(sum(each() is not None for each in batches))
        return evaluate(self, *given, **named)

    monkeypatch.setattr(LearnAlone, "__call__", noting)
    monkeypatch.setattr(Session, "evaluate", counting)
    trained(community_graph(), tmp_path / "run", batch_size=4, epochs=2, evaluate_every=1)
    assert held == [0, 0, 0]
