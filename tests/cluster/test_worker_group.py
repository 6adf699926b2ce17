"""Workers that meet through the wire: rounds, barriers, the word to stop, progress and states."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from wired import team_of, template_for, wired

from penstock.cluster.rendezvous import Rendezvous
from penstock.cluster.tasks.worker import ForwardedProgress, serve_state, state_of
from penstock.cluster.worker.collectives import HostCollectiveGroup, RendezvousStore
from penstock.cluster.worker.cut_graph import RowExchange
from penstock.cluster.worker.inputs import PartedInputs
from penstock.cluster.worker.layerwise import PartedPlan
from penstock.cluster.worker.worker_group import progress_of
from penstock.errors import PenstockError
from penstock.train.build import make_session
from penstock.train.job import make_job
from penstock.train.run_files.checkpoints import TrainState
from penstock.train.steps.group import RegroupError
from penstock.wire.message import Message
from refusals import refused
from training_graphs import assert_same_state, community_graph


@pytest.fixture
def two():
    """A meeting, the controller's post, and two workers' members; and what they tell."""
    meeting, told = Rendezvous(2), []

    def hear(message, sender):
        told.append((sender, message.body))
        return Message("heard")

    endpoint, members = wired(template_for(2), {**meeting.handlers(), "progress": hear}, (0, 1))
    with ExitStack() as stack:
        stack.enter_context(endpoint)
        for member in members:
            stack.enter_context(member)
        yield SimpleNamespace(meeting=meeting, endpoint=endpoint, members=members, told=told)


def teams_of(two):
    """Both workers' views, without graphs."""
    return [team_of(member) for member in two.members]


def at_once(*calls):
    """The results of calls that wait for each other; what one raised is its result."""

    def tried(call):
        try:
            return call()
        except (RegroupError, PenstockError) as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(tried, calls))


def test_workers_meet_and_wait_for_each_other(two):
    first, second = teams_of(two)
    rounds = at_once(lambda: first.meet(4), lambda: second.meet(7))
    assert rounds[0] == rounds[1] and (rounds[0].source, rounds[0].step) == (1, 7)
    assert first.generation == second.generation == rounds[0].generation
    assert at_once(lambda: first.barrier("x"), lambda: second.barrier("x")) == [None, None]


def test_barrier_of_a_round_that_is_over(two):
    first, second = teams_of(two)
    at_once(lambda: first.meet(0), lambda: second.meet(0))
    two.meeting.rounds.lose(1)
    with pytest.raises(RegroupError):
        first.barrier("x")


def test_who_waits_hears_that_the_run_is_over(two):
    first, _ = teams_of(two)
    two.members[0].stopped.set()
    with refused("closed"):
        first.meet(0)


def test_board_over_the_wire(two):
    first, second = teams_of(two)
    at_once(lambda: first.meet(0), lambda: second.meet(0))
    near, far = (RendezvousStore(member, 1, 5.0) for member in two.members)
    assert not near.check(["k"])
    assert at_once(lambda: near.get("k"), lambda: far.set("k", b"\x00value"))[0] == b"\x00value"
    near.multi_set(["a", "b"], [b"1", b"2"])
    assert far.multi_get(["a", "b"]) == [b"1", b"2"] and far.check(["a", "b", "k"])
    two.meeting.rounds.lose(None)
    with pytest.raises(RegroupError):
        near.get("never")


def test_a_step_agrees_on_loss_and_stop(two):
    """What the reduction says counts, not what this worker was asked."""

    class Fake:
        group = None

        def step(self, session, loss, asked):
            self.given = loss, asked
            return 2.5, True

    team, fake = teams_of(two)[0], Fake()
    team.reduction = fake
    inputs = object.__new__(PartedInputs)
    inputs.step = 4
    session = SimpleNamespace(inputs=inputs, learned=torch.nn.ModuleDict())
    assert not team.stopping()
    assert team.reduce_and_step(session, 1.25) == 2.5 and fake.given == (1.25, False) and team.stopping()
    two.members[0].asked.set()
    team.reduce_and_step(session, 1.0)
    assert fake.given == (1.0, True) and inputs.step == 6


@pytest.mark.parametrize("have, together", [((True, True), False), ((True, False), True)])
def test_each_worker_infers_for_itself_if_all_have_the_graph_on_their_devices(two, have, together):
    """All decide alike, whatever room each has."""
    teams = teams_of(two)
    at_once(*(lambda team=team: team.meet(0) for team in teams))
    session, whole = make_session(make_job({"graph": "g", "device": "cpu"}), community_graph()), object()

    def plan_of(rank):
        group = HostCollectiveGroup(two.members[rank], teams[rank].generation)
        teams[rank].reduction = SimpleNamespace(group=group)
        try:
            return teams[rank].inference(session, lambda plan: whole if have[rank] else None).plan
        finally:
            group.close()

    plans = at_once(lambda: plan_of(0), lambda: plan_of(1))
    assert all(isinstance(plan, PartedPlan) if together else plan is whole for plan in plans)


def test_a_worker_alone_asks_nobody(two):
    team = teams_of(two)[0]
    team.reduction = SimpleNamespace(group=None)
    assert team.all_agree(True) and not team.all_agree(False)


def kept(two, *parts):
    """Both workers' exchanges, each with its part of "a"."""
    exchanges = [RowExchange(member) for member in two.members]
    for exchange, part in zip(exchanges, parts, strict=True):
        exchange.keep("a", part)
    return exchanges


@pytest.mark.parametrize("rows", [(5, 7), (0, 7), (5, 0), (0, 0)])
def test_parts_are_joined_in_the_order_of_ranks(two, monkeypatch, rows):
    """However large they are: they travel in pieces."""
    monkeypatch.setattr("penstock.cluster.worker.cut_graph._PIECE", 30)
    whole = np.arange(2 * sum(rows), dtype=np.float32).reshape(-1, 2)
    for exchange in kept(two, whole[: rows[0]], whole[rows[0] :]):
        found = exchange.joined("a", rows)
        np.testing.assert_array_equal(found, whole)
        assert found.dtype == np.float32


@pytest.mark.parametrize(
    "other, said",
    [
        (np.zeros((3, 2)), "malformed-message float64"),
        (np.zeros((3, 3), np.float32), "malformed-message 3"),
        (np.zeros(3, np.float32), "malformed-message 3"),
        (np.zeros((4, 2), np.float32), "malformed-message 4 2 3"),
        (np.zeros((2, 2), np.float32), "malformed-message 2 3"),
    ],
    ids=lambda value: str(getattr(value, "shape", "")),
)
def test_parts_that_are_not_as_ones_own_are_refused(two, other, said):
    mine, _ = kept(two, np.zeros((2, 2), np.float32), other)
    with refused(said):
        mine.joined("a", (2, 3))


def test_parts_of_a_broken_round_are_forgotten_when_workers_meet(two):
    first, second = teams_of(two)
    for team in (first, second):
        team._parts.exchange.keep("a", np.zeros(3))
    at_once(lambda: first.meet(0), lambda: second.meet(0))
    with pytest.raises(KeyError):
        first._parts.exchange.joined("a", (3, 3))
    first._parts.exchange.keep("a", np.zeros(3))
    with refused("not-available a"):
        first._parts.exchange.joined("a", (3, 3))


def test_progress_is_told_in_order_and_many_advances_as_one(two):
    progress = ForwardedProgress(two.members[0])
    with progress.step("training", 100, "batches"):
        for _ in range(100):
            progress.advance(1)
    progress.status("half way")
    progress.note("a word")
    bodies = [body for sender, body in two.told if sender == "worker-0"]
    kinds = [body["what"] for body in bodies]
    assert kinds[0] == "start" and kinds[-3:] == ["finish", "status", "note"]
    assert sum(body["amount"] for body in bodies if body["what"] == "advance") == 100
    assert kinds.count("advance") < 100 and progress.notes == ["a word"]


def test_training_does_not_wait_for_whoever_shows_its_progress():
    """Behind a slow link the controller hears later, all of it and in order."""
    heard, answered = [], threading.Event()

    def ask(kind, **body):
        answered.wait()
        heard.append(body)

    progress = ForwardedProgress(SimpleNamespace(ask=ask))
    progress.start("training", 7, "batches")
    for _ in range(7):
        progress.advance(1)
    progress.status("half way")
    assert not heard
    answered.set()
    progress.finish()
    assert [body["what"] for body in heard if body["what"] != "advance"] == ["start", "status", "finish"]
    assert sum(body["amount"] for body in heard if body["what"] == "advance") == 7


def test_progress_that_nobody_hears_is_no_failure(two):
    two.endpoint.close()
    two.members[0].setup.cluster.failure.patience = 0.2
    ForwardedProgress(two.members[0]).status("alone")


def test_state_over_the_wire(two, monkeypatch):
    """Bit for bit, in several pieces."""
    monkeypatch.setattr("penstock.cluster.tasks.worker._PIECE", 1000)
    state = {
        "weights": {"w": torch.randn(40, 30), "b": torch.tensor([float("inf"), float("nan"), -0.0])},
        "half": torch.randn(3, dtype=torch.bfloat16),
        "standing": {"step": 7, "loss": 0.1, "names": ["a", None, True]},
        "groups": [{"lr": 1e-3}, {}],
    }
    serve_state(two.members[1], "state", lambda: state)
    assert_same_state(state_of(two.members[0], 1), state)


def test_progress_counts_the_end_of_an_epoch():
    ended, ending = TrainState(step=8), TrainState(step=8, ending=True)
    assert progress_of(TrainState(step=7)) < progress_of(ending) < progress_of(ended) < progress_of(TrainState(step=9))
