"""Which explanation is in force when, what a checkpoint keeps of it, and who waits for how long."""

import threading

import pytest
import torch

from penstock.cluster.worker.explained.explanations import ExplanationSchedule
from penstock.errors import PenstockError
from penstock.sampling.explanation import SamplingExplanation
from refusals import refused


def weights_of(number):
    return {"w": torch.full((2,), float(number))}


def explained(version):
    return SamplingExplanation(version, {}, {})


@pytest.fixture
def asked():
    return []


@pytest.fixture
def schedule(asked):
    made = ExplanationSchedule(4, 3, lambda version, weights: asked.append((version, float(weights["w"][0]))))
    made.start(0)
    return made


def test_versions_follow_steps(schedule):
    assert [schedule.version_at(step) for step in (0, 6, 7, 10, 11, 15)] == [0, 0, 1, 1, 2, 3]
    assert schedule.at(6) is None


def test_weights_are_copied_when_due_and_forgotten_when_no_batch_needs_them(schedule, asked):
    weights = weights_of(0)
    for step in range(1, 13):
        weights["w"].fill_(step)
        schedule.step_done(step, lambda: weights)
    assert asked == [(1, 4.0), (2, 8.0), (3, 12.0)]
    # The batch of step 12 comes next: version 2 is in force, version 3 to come.
    assert {name: float(each["w"][0]) for name, each in schedule.state().items()} == {"2": 8.0, "3": 12.0}


def test_a_batch_waits_for_its_explanation(schedule):
    found = []
    waiting = threading.Thread(target=lambda: found.append(schedule.at(7)))
    waiting.start()
    schedule.give(explained(1))
    waiting.join()
    assert found[0].version == 1 and schedule.at(8) is found[0] and schedule.newest() is found[0]


def test_who_waits_is_let_go_when_training_stops_or_explaining_fails(schedule):
    caught = []

    def wait():
        try:
            schedule.at(7)
        except PenstockError as error:
            caught.append(error.code)

    for end in (schedule.stop, lambda: schedule.fail(PenstockError("no", code="out-of-memory"))):
        waiting = threading.Thread(target=wait)
        waiting.start()
        end()
        waiting.join()
        schedule.start(0) if len(caught) == 1 else None
    assert caught == ["closed", "out-of-memory"]


def test_a_restored_schedule_explains_again_what_it_does_not_have(schedule, asked):
    schedule.step_done(4, lambda: weights_of(4))
    schedule.step_done(8, lambda: weights_of(8))
    schedule.give(explained(1))
    state = schedule.state()
    schedule.stop()
    schedule.restore(state)
    asked.clear()
    schedule.start(9)
    assert asked == [(2, 8.0)]
    other = ExplanationSchedule(4, 3, lambda version, weights: asked.append(version))
    other.restore(state)
    asked.clear()
    other.start(9)
    assert asked == [1, 2]
    schedule.restore({"1": weights_of(5), "2": weights_of(8)})
    asked.clear()
    schedule.start(9)
    assert asked == [(1, 5.0), (2, 8.0)]
    with refused("damaged-file"):
        schedule.restore({"first": {}})
