"""A step that several workers share and that fails: nothing has moved, and it can be done again."""

from contextlib import nullcontext

import pytest
import torch

from penstock.nn.norm import normalising
from penstock.pipeline.schedule import Position, Schedule
from penstock.train.build import make_session
from penstock.train.execution_modes import choose_execution
from penstock.train.job import make_job
from penstock.train.steps.group import RegroupError
from training_graphs import SMALL, community_graph


class Alone:
    """One worker, whose agreement fails when it is told to."""

    rank, world, fails = 0, 1, False

    def share(self, planned):
        """All."""
        return planned._replace(whole=len(planned.seeds))

    def normalising(self, session, batch):
        """As one that trains alone."""
        return normalising(None)

    def reduce_and_step(self, session, loss):
        """A step."""
        if self.fails:
            raise RegroupError("a worker was lost")
        session.optimiser.step()
        return loss


@pytest.fixture
def session():
    """A model whose norms have running figures."""
    made = make_session(make_job({**SMALL, "norm": "batch", "graph": "none"}), community_graph())
    made.execution = choose_execution(made, group=Alone())
    return made


def first_step(session):
    """Do the first step."""
    schedule = Schedule(session.task.items, session.task.batch_size, 0, 1)
    with session.execution.steps(schedule, Position(0, 0), lambda position: 1, lambda *given: nullcontext()) as steps:
        return next(iter(steps))


def figures(session):
    """Running figures and weights."""
    return {name: value.clone() for name, value in session.learned.state_dict().items()}


def test_running_figures_move_once_however_often_a_step_is_tried(session):
    before = figures(session)
    session.execution.group.fails = True
    for _ in range(2):
        with pytest.raises(RegroupError):
            first_step(session)
        assert all(torch.equal(value, before[name]) for name, value in figures(session).items())
    session.execution.group.fails = False
    (done,) = first_step(session)
    assert done.loss > 0
    moved = figures(session)
    tracked = [name for name in moved if name.endswith("num_batches_tracked")]
    assert tracked and all(moved[name] == before[name] + 1 == 1 for name in tracked)
    assert any(not torch.equal(value, before[name]) for name, value in moved.items() if "running_mean" in name)
