"""The engine of bursts with parts made for a test: what it asks of them, in which order, and how it goes back."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import penstock
from penstock.pipeline.schedule import START, Position, Schedule
from penstock.train.first_layer.slots import NoFill
from penstock.train.steps.engine import Course, Engine
from penstock.train.steps.parts import Source, StepCompute, StepGradients
from penstock.train.steps.update import LocalUpdate

BATCHES = 5


class Numbered(Source):
    """Batches that are numbers; the loss of each is its number, and one of them lacks room until there is more."""

    is_drawn = True

    def __init__(self, lacking=None):
        self.lacking, self.cursor, self.failed, self.calls = lacking, 0, None, []
        self.losses, self.counts = {}, True

    def fill(self, position):
        self.calls.append(("fill", position))
        self.cursor = position.batch

    def slot(self, number):
        return SimpleNamespace(slot=None, number=None)

    def idle(self):
        self.counts = False

    def first(self):
        self.cursor = 0

    def draw(self, slot):
        slot.number, self.cursor = self.cursor, self.cursor + 1
        if self.counts and slot.number == self.lacking and self.failed is None:
            self.failed = slot.number

    def keep(self, slot, loss):
        self.losses[slot.number] = float(loss)

    def restart(self, batch):
        self.calls.append(("restart", batch))
        self.cursor, self.failed, self.counts = batch, None, True

    def look(self, first, last):
        until = last if self.failed is None else min(last, self.failed)
        return [self.losses[number] for number in range(first, until)], self.failed if until < last else None

    def lacks_room(self, batch):
        return batch == self.failed

    def enlarge(self, failed):
        self.calls.append(("enlarge", failed))
        self.lacking = None

    def close(self):
        self.calls.append(("close",))


class Adding(StepCompute):
    """The gradient of every step is 1; a step behind a batch that lacked room is left out."""

    def __init__(self, weight, source):
        self._weight, self._source = weight, source

    def gradients(self, slot, inputs):
        self._weight.grad = torch.ones(1)
        skip = self._source.failed is not None or not self._source.counts
        return StepGradients(torch.tensor([float(slot.number)]), torch.tensor([float(skip)]))


@pytest.fixture
def session():
    weight = torch.nn.Parameter(torch.zeros(1))
    return SimpleNamespace(
        inputs=SimpleNamespace(device=torch.device("cpu")),
        job=SimpleNamespace(clip=None),
        learned=torch.nn.ParameterList([weight]),
        optimiser=torch.optim.SGD([weight], lr=1.0, fused=True),
        weight=weight,
    )


def engine_of(session, source, pause, epochs=2, start=START, slots=2):
    schedule = Schedule(torch.arange(2 * BATCHES).numpy(), 2, 0, epochs)
    course = Course(schedule, start, lambda at: min(pause, BATCHES - at.batch), lambda *_: None)
    return Engine(session, source, NoFill(slots), Adding(session.weight, source), LocalUpdate(session), course)


@pytest.mark.parametrize("pause", [1, 2, 100])
@pytest.mark.parametrize("slots", [2, 4])
def test_every_batch_is_learned_from_once_in_order(session, pause, slots):
    source = Numbered()
    with engine_of(session, source, pause, slots=slots) as engine:
        done = [step for some in engine for step in some]
    assert [(step.position, step.loss, step.last) for step in done] == [
        (Position(epoch, batch), float(batch), batch == BATCHES - 1) for epoch in range(2) for batch in range(BATCHES)
    ]
    assert float(session.weight.detach()) == -2 * BATCHES
    assert source.calls[-1] == ("close",) and session.weight.grad is None


def test_warming_up_learns_nothing(session):
    with engine_of(session, Numbered(), 1):
        assert float(session.weight.detach()) == 0


@pytest.mark.parametrize("lacking", [0, 3, BATCHES - 1])
def test_steps_from_a_batch_that_lacked_room_on_are_done_again(session, lacking):
    source = Numbered(lacking)
    with engine_of(session, source, 100, epochs=1) as engine:
        done = [step for some in engine for step in some]
    assert [step.loss for step in done] == list(range(BATCHES))
    assert float(session.weight.detach()) == -BATCHES
    assert [call for call in source.calls if call[0] == "enlarge"] == [("enlarge", lacking)]
    assert ("restart", lacking) in source.calls


def test_a_run_goes_on_in_the_middle_of_an_epoch(session):
    with engine_of(session, Numbered(), 2, epochs=1, start=Position(0, 3)) as engine:
        done = [step for some in engine for step in some]
    assert [step.position for step in done] == [Position(0, 3), Position(0, 4)]


def test_steps_that_cannot_be_left_out_count_from_the_first(session):
    source = Numbered()
    source.is_drawn, source.can_skip = False, False
    source.prepare = lambda slot, number: source.draw(slot)
    with engine_of(session, source, 2, epochs=1, slots=1) as engine:
        assert not source.losses
        done = [step for some in engine for step in some]
    assert [step.loss for step in done] == list(range(BATCHES))
    assert float(session.weight.detach()) == -BATCHES


def test_the_optimisers_step_is_made_in_one_place():
    root = Path(penstock.__file__).parent
    files = [*(root / "train").rglob("*.py"), *(root / "cluster" / "worker").rglob("*.py")]
    found = [file.name for file in files if re.search(r"optimiser\.step\(|found_inf =", file.read_text())]
    assert found == ["update.py"]
