"""Captured steps that workers share, replayed by an interpreter: what one worker learns alone, whatever its share."""

import importlib.util
import threading

import pytest
import torch
from test_captured_steps import learned, schedule_of, session_of, weights

from penstock.cluster.worker.split import SeedSplit
from penstock.pipeline.schedule import Position
from penstock.train.execution_modes import choose_execution
from training_graphs import community_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU itself is tested in test_cluster_on_gpu"),
]


@pytest.fixture
def graph():
    """Small enough for an interpreter."""
    return community_graph(120)


@pytest.fixture(autouse=True)
def _one_at_a_time(monkeypatch):
    """The interpreter is not made for launches from several threads at once."""
    from triton.runtime import interpreter

    lock, launch = threading.RLock(), interpreter.GridExecutor.__call__

    def locked(self, *given, **more):
        with lock:
            return launch(self, *given, **more)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", locked)


class Group:
    """Workers that are threads of one process."""

    def __init__(self, shares, rank, meeting, handed):
        self._shares, self.rank, self.world = shares, rank, len(shares)
        self._meeting, self._handed = meeting, handed
        self._split = None

    def of(self, session):
        """For the items of a session."""
        items = session.task.items
        self._split = SeedSplit(items, items, self._shares, self.rank)
        return self

    def share(self, planned):
        """Of a batch."""
        return self._split.share(planned)

    def reduce_and_step(self, session, loss):
        """The sum of all workers' gradients, in the order of ranks."""
        parameters = list(session.learned.parameters())
        self._handed[self.rank] = [loss, *(parameter.grad.clone() for parameter in parameters)]
        self._meeting.wait()
        total, *sums = (sum(parts) for parts in zip(*(self._handed[rank] for rank in range(self.world)), strict=True))
        self._meeting.wait()
        for parameter, gradient in zip(parameters, sums, strict=True):
            parameter.grad.copy_(gradient)
        session.optimiser.step()
        return float(total)


def shared(graph, shares, rooms=(None, None), **fields):
    """All workers train; the steps and weights of each."""
    meeting, handed, found = threading.Barrier(len(shares), timeout=300), {}, {}

    def work(rank):
        try:
            session = session_of(graph, rooms[rank], **fields)
            placed, group = session.execution.placed, Group(shares, rank, meeting, handed).of(session)
            placed.room = rooms[rank] or placed.room
            session.execution = choose_execution(session, placed, group)
            assert session.execution.name == "captured-shared"
            done = []
            with session.execution.steps(schedule_of(session), Position(0, 0), lambda _: 1, lambda *_: None) as steps:
                for some in steps:
                    done += some
            found[rank] = done, weights(session), session.execution.state()
        except BaseException:
            meeting.abort()
            raise

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(shares))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(len(shares))]


def sized(graph, seeds):
    """Room for a worker's share: as much as any batch needs."""
    from penstock.sampling.device.room import largest_room

    return largest_room(seeds, [3, 2], graph.num_nodes)


@pytest.mark.parametrize("shares", [(1.0,), (0.5, 0.5), (0.3, 0.7)])
def test_workers_learn_what_one_learns_alone(graph, shares):
    done, alone = learned(session_of(graph, dropout=0.3))
    workers = shared(graph, shares, [sized(graph, round(16 * share)) for share in shares], dropout=0.3)
    for steps, values, _ in workers:
        assert [step.position for step in steps] == [step.position for step in done]
        assert [step.examples for step in steps] == [step.examples for step in done]
        assert [step.loss for step in steps] == pytest.approx([step.loss for step in done], rel=1e-4)
        for name, value in values.items():
            torch.testing.assert_close(value, alone[name], rtol=1e-3, atol=1e-4)
        assert all(torch.equal(value, workers[0][1][name]) for name, value in values.items())


def test_a_share_that_lacks_room_is_drawn_again(graph):
    from penstock.sampling.device.room import Room

    roomy = shared(graph, (0.5, 0.5), [sized(graph, 8)] * 2)
    tight = shared(graph, (0.5, 0.5), [sized(graph, 8), Room((8, 12, 20), (10, 16))])
    for (steps, values, _), (other_steps, other_values, _) in zip(roomy, tight, strict=True):
        assert [step.loss for step in steps] == pytest.approx([step.loss for step in other_steps], rel=1e-5)
        for name, value in values.items():
            torch.testing.assert_close(value, other_values[name], rtol=1e-4, atol=1e-5)
    assert tight[1][2]["room"][0][1] > 12
