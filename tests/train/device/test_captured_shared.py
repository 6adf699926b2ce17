"""Captured steps that workers share, replayed by an interpreter: what one worker learns alone, whatever its share."""

import copy
import functools
import importlib.util
import threading

import numpy as np
import pytest
import torch
from test_captured_steps import learned, session_of

from device_steps import bursts, schedule_of, weights
from interpreted_kernels import one_launch_at_a_time
from penstock.cluster.worker.batch_source import SeedSplit
from penstock.pipeline.schedule import START
from penstock.train.execution_modes import choose_execution
from penstock.train.steps.group import RegroupError
from training_graphs import assert_same_state, community_graph, typed_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU itself is tested in test_cluster_on_gpu"),
]


@pytest.fixture(scope="module")
def graph():
    """Small enough for an interpreter."""
    return community_graph(120)


@pytest.fixture(scope="module")
def learned_alone(graph):
    """What one worker learns, by the fields of its job."""
    return functools.cache(lambda **fields: learned(session_of(graph, dropout=0.3, **fields)))


@pytest.fixture(scope="module")
def learned_with_room(graph):
    """What two workers learn that have room for every batch, by who makes their steps."""
    return functools.cache(
        lambda sums: shared(graph, (0.5, 0.5), [sized(graph, 8)] * 2, pause=100, sums=sums, epochs=1)
    )


@pytest.fixture(autouse=True)
def _one_at_a_time(monkeypatch):
    one_launch_at_a_time(monkeypatch)


class Group:
    """Workers that are threads of one process; `sums`: they make the steps themselves, `agreed`: all have the graph."""

    def __init__(self, shares, rank, meeting, handed, sums=True, agreed=True, fails_at=None):
        self._shares, self.rank, self.world = shares, rank, len(shares)
        self._meeting, self._handed, self._sums, self._agreed = meeting, handed, sums, agreed
        self._split, self.asked_at, self.steps, self.stopping = None, None, 0, False
        self._launched, self._fails_at, self.is_abandoned = 0, fails_at, False

    def of(self, session):
        """For the items of a session."""
        items = session.task.items
        self._split = SeedSplit(items, items, self._shares, self.rank)
        return self

    def share(self, planned):
        """Of a batch."""
        return self._split.share(planned)

    def _summed(self, own):
        """Of all workers' numbers, in the order of ranks."""
        self._handed[self.rank] = own
        self._meeting.wait()
        sums = [sum(parts) for parts in zip(*(self._handed[rank] for rank in range(self.world)), strict=True)]
        self._meeting.wait()
        return sums

    def reduce_and_step(self, session, loss):
        """The sum of all workers' gradients."""
        parameters = list(session.learned.parameters())
        total, *sums = self._summed([loss, *(parameter.grad.clone() for parameter in parameters)])
        for parameter, gradient in zip(parameters, sums, strict=True):
            parameter.grad.copy_(gradient)
        session.optimiser.step()
        return float(total)

    def device_sums(self):
        """Itself, where workers make the steps."""
        return self if self._sums else None

    def launch(self, numbers):
        """At once; or the round is over."""
        self._launched += 1
        if self._launched == self._fails_at:
            raise RegroupError("a worker was lost")
        (total,) = self._summed([numbers.clone()])
        numbers.copy_(total)

    def finish(self, is_done):
        """It is."""
        assert is_done()

    def abandon(self):
        """Remember."""
        self.is_abandoned = True

    def all_agree(self, own):
        """As the test has it."""
        return own and self._agreed

    def was_asked_to_stop(self):
        """From a step on."""
        return self.asked_at is not None and self.steps >= self.asked_at

    def count_steps(self, session, steps, stopping):
        """Remember."""
        self.steps, self.stopping = self.steps + steps, stopping


def shared(graph, shares, rooms=(None, None), pause=3, asked=None, make=session_of, **fields):
    """All workers train; the steps and weights of each. `asked` is (rank, step): that worker is asked to stop then."""
    how = {name: fields.pop(name) for name in ("sums", "agreed") if name in fields}
    meeting, handed, found = threading.Barrier(len(shares), timeout=300), {}, {}

    def work(rank):
        try:
            session = make(graph, rooms[rank], **fields)
            placed, group = session.execution.placed, Group(shares, rank, meeting, handed, **how).of(session)
            group.asked_at = asked[1] if asked and asked[0] == rank else None
            placed.room = rooms[rank] or placed.room
            session.execution = choose_execution(session, placed, group)
            assert session.execution.name == "captured-shared"
            done, schedule = [], schedule_of(session)
            often = bursts(schedule, pause)
            with session.execution.steps(schedule, START, often, lambda *_: None) as steps:
                for some in steps:
                    done += some
                    if group.stopping:
                        break
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
    from penstock.sampling.device.program import DeviceProgram, neighbour_rules

    return DeviceProgram(neighbour_rules([3, 2])).largest_room(seeds, graph.num_nodes, graph.num_edges)


@pytest.mark.parametrize(
    "shares, how",
    [
        pytest.param((1.0,), {}, marks=pytest.mark.long),
        pytest.param((0.5, 0.5), {}, marks=pytest.mark.long),
        pytest.param((0.3, 0.7), {}, marks=pytest.mark.long),
        ((0.3, 0.7), {"optimiser": "SGD", "clip": 0.5}),
        # Parameter servers make the step; or some worker's GPU has no room for the graph.
        ((0.3, 0.7), {"sums": False}),
        pytest.param((0.3, 0.7), {"agreed": False}, marks=pytest.mark.long),
    ],
)
def test_workers_learn_what_one_learns_alone(graph, learned_alone, shares, how):
    model = {name: value for name, value in how.items() if name not in ("sums", "agreed")}
    done, alone = learned_alone(**model)
    workers = shared(graph, shares, [sized(graph, round(16 * share)) for share in shares], dropout=0.3, **how)
    for steps, values, _ in workers:
        assert [step.position for step in steps] == [step.position for step in done]
        assert [step.examples for step in steps] == [step.examples for step in done]
        assert [step.loss for step in steps] == pytest.approx([step.loss for step in done], rel=1e-4)
        for name, value in values.items():
            torch.testing.assert_close(value, alone[name], rtol=1e-3, atol=1e-4)
        assert all(torch.equal(value, workers[0][1][name]) for name, value in values.items())


def test_workers_share_batches_of_several_types():
    from test_learned_steps import session_of as typed_session

    from penstock.train.device.decision import device_program

    graph, shares = typed_graph(60), (0.3, 0.7)
    authors = graph.nodes["author"]
    authors.fields["x"] = np.random.default_rng(0).normal(size=(authors.count, 4)).astype(np.float32)
    fields = {"model": "rgcn", "batch_size": 20, "epochs": 1, "dropout": 0.3}
    alone = typed_session(graph, **fields)
    program = device_program(alone)
    done, right = learned(alone)
    rooms = [program.largest_room(round(20 * share), graph.num_nodes, graph.num_edges) for share in shares]
    for steps, values, _ in shared(graph, shares, rooms, make=typed_session, **fields):
        assert [(step.position, step.examples) for step in steps] == [(step.position, step.examples) for step in done]
        assert [step.loss for step in steps] == pytest.approx([step.loss for step in done], rel=1e-4)
        for name, value in values.items():
            torch.testing.assert_close(value, right[name], rtol=1e-3, atol=1e-4)


def test_the_only_worker_learns_bit_for_bit_what_one_device_learns(graph, learned_alone):
    done, alone = learned_alone(clip=0.5)
    ((steps, values, _),) = shared(graph, (1.0,), (None,), dropout=0.3, clip=0.5)
    assert steps == done
    assert all(torch.equal(value, alone[name]) for name, value in values.items())


def test_bursts_of_sums_change_nothing(graph, learned_with_room):
    few, many = shared(graph, (0.5, 0.5), [sized(graph, 8)] * 2, pause=1, epochs=1), learned_with_room(True)
    for (steps, values, _), (others, other_values, _) in zip(few, many, strict=True):
        assert steps == others and all(torch.equal(value, other_values[name]) for name, value in values.items())


@pytest.mark.parametrize("sums, tight", [(True, 0), pytest.param(True, 1, marks=pytest.mark.long), (False, 1)])
def test_a_share_that_lacks_room_is_drawn_again(graph, learned_with_room, sums, tight):
    """By its own worker; the other one goes back with it."""
    from penstock.sampling.device.block import Room

    rooms = [sized(graph, 8)] * 2
    roomy = learned_with_room(sums)
    rooms[tight] = Room((8, 12, 20), (10, 16))
    found = shared(graph, (0.5, 0.5), rooms, pause=100, sums=sums, epochs=1)
    for (steps, values, _), (other_steps, other_values, _) in zip(roomy, found, strict=True):
        assert [step.position for step in steps] == [step.position for step in other_steps]
        assert [step.loss for step in steps] == pytest.approx([step.loss for step in other_steps], rel=1e-5)
        for name, value in values.items():
            torch.testing.assert_close(value, other_values[name], rtol=1e-4, atol=1e-5)
    assert found[tight][2]["room"][0][1] > 12


def test_all_workers_stop_at_the_same_step(graph):
    """Whoever was asked: it is said with the next burst."""
    workers = shared(graph, (0.5, 0.5), [sized(graph, 8)] * 2, pause=2, asked=(1, 2))
    assert [len(steps) for steps, *_ in workers] == [4, 4]


@pytest.mark.parametrize("optimiser", ["Adam", "SGD"])
def test_a_burst_that_fails_changes_nothing(graph, optimiser, monkeypatch):
    """However many of its steps were made: another worker may not have come so far. Sums that a GPU would wait in for
    ever are abandoned before it is waited for.
    """
    session = session_of(graph, sized(graph, 16), optimiser=optimiser)
    # A partner that hands in nothing but its word that it is ready.
    meeting, handed = threading.Barrier(1), {1: [0.0]}

    class WithPartner(Group):
        def _summed(self, own):
            (numbers,) = own
            numbers[-2] += 1
            return [numbers]

    group = WithPartner((1.0, 0.0), 0, meeting, handed, fails_at=6).of(session)
    session.execution = choose_execution(session, session.execution.placed, group)
    done, known, abandoned = [], {}, []
    monkeypatch.setattr("penstock.train.steps.update.rest", lambda _: abandoned.append(group.is_abandoned))
    with (
        session.execution.steps(schedule_of(session), START, lambda _: 4, lambda *_: None) as steps,
        pytest.raises(RegroupError),
    ):
        for some in steps:
            done += some
            known = copy.deepcopy([weights(session), session.optimiser.state_dict()])
    assert len(done) == 4 == group.steps and abandoned == [True, True]
    assert_same_state([weights(session), session.optimiser.state_dict()], known)
