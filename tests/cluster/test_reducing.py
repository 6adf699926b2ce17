"""Sums among workers: gradients as one row, steps that all make alike, and groups that never hang."""

import threading
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from test_worker_group import at_once
from torch import distributed
from wired import team_of, template_for, wired

from penstock.cluster.rendezvous import Rendezvous
from penstock.cluster.worker import collectives, worker_group
from penstock.cluster.worker.collectives import WireGroup
from penstock.cluster.worker.worker_group import FlatGradients, are_finite, learned_parameters
from penstock.train.steps.group import RegroupError
from refusals import refused

CPU = torch.device("cpu")


def session_of(seed=0, compute_type="float32", device=CPU):
    """A model of two layers with gradients; one parameter has none."""
    torch.manual_seed(seed)
    learned = torch.nn.ModuleDict({"model": torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))})
    for parameter in learned.parameters():
        parameter.grad = torch.randn_like(parameter)
    learned["model"][0].bias.grad = None
    job = SimpleNamespace(clip=0.0, compute_type=compute_type)
    optimiser = torch.optim.SGD(learned.parameters(), lr=0.5)
    return SimpleNamespace(
        learned=learned,
        job=job,
        optimiser=optimiser,
        inputs=SimpleNamespace(device=device, on_gpu=device.type == "cuda"),
    )


@pytest.fixture
def two():
    """A meeting and two workers' members who have met."""
    meeting = Rendezvous(2)
    endpoint, members = wired(template_for(2), meeting.handlers(), (0, 1))
    with ExitStack() as stack:
        stack.enter_context(endpoint)
        for member in members:
            stack.enter_context(member)
        teams = [team_of(member) for member in members]
        at_once(lambda: teams[0].meet(0), lambda: teams[1].meet(0))
        yield SimpleNamespace(
            meeting=meeting, members=members, generation=teams[0].generation, mailboxes=[t.collective for t in teams]
        )


def test_gradients_as_one_row_and_back():
    session = session_of()
    flat = FlatGradients(learned_parameters(session), 3)
    flat.take_gradients()
    flat.set_more([1.5, 2.0, 3.0])
    assert flat.more.tolist() == [1.5, 2.0, 3.0] and flat.present == [True, False, True, True]
    before = [None if p.grad is None else p.grad.clone() for p in flat.parameters]
    for parameter in flat.parameters:
        parameter.grad = None
    flat.give_gradients(flat.present)
    for parameter, gradient in zip(flat.parameters, before, strict=True):
        assert (parameter.grad is None) == (gradient is None)
        assert gradient is None or torch.equal(parameter.grad, gradient)
    assert are_finite(flat.parameters)
    flat.parameters[0].grad[0] = float("inf")
    assert not are_finite(flat.parameters)


@pytest.mark.parametrize("early", [(), (2, 3), (0, 1)])
@pytest.mark.parametrize("reduction", ["torch", "wire"])
def test_two_workers_make_the_same_step(two, reduction, early):
    """`early` are parameters whose gradients are summed before the step."""
    for member in two.members:
        member.setup.cluster.reduction = reduction
    sessions = [session_of(0), session_of(0)]
    for session in sessions[1:]:
        for parameter in session.learned.parameters():
            parameter.grad = torch.ones_like(parameter)
    expected = [p - 0.5 * (1 + (0 if p.grad is None else p.grad)) for p in session_of(0).learned.parameters()]

    def train(rank):
        summed = worker_group.AllReduce(two.members[rank], sessions[rank], two.generation, two.mailboxes[rank])
        assert isinstance(summed.group, {"torch": collectives.HostCollectiveGroup, "wire": WireGroup}[reduction])
        try:
            if early:
                summed.start_sum([learned_parameters(sessions[rank])[place] for place in early])
            return summed.step(sessions[rank], 0.25 * (rank + 1), rank == 1)
        finally:
            summed.close()

    assert at_once(lambda: train(0), lambda: train(1)) == [(0.75, True), (0.75, True)]
    for session in sessions:
        for parameter, value in zip(session.learned.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter, value)


def test_rows_of_different_lengths_are_gathered(two):
    """And a sum may follow."""
    given = [torch.arange(3), torch.tensor([1 << 60])]

    def gather(rank):
        group = collectives.HostCollectiveGroup(two.members[rank], two.generation)
        try:
            found, none = group.gather(given[rank]), group.gather(torch.empty(0))
            total = torch.ones(2, dtype=torch.float64)
            group.sum(total)
            return found, none, total
        finally:
            group.close()

    for found, none, total in at_once(lambda: gather(0), lambda: gather(1)):
        assert all(torch.equal(*pair) for pair in zip(found, given, strict=True))
        assert [len(each) for each in none] == [0, 0] and total.tolist() == [2.0, 2.0]


def test_gpus_gather_as_hosts_do(two, nccl):
    group = collectives.DeviceCollectiveGroup(two.members[0], two.generation, CPU)
    nccl.made[0].later.set()
    assert [each.tolist() for each in group.gather(torch.arange(3))] == [[0, 1, 2], [0, 1, 2]]
    two.meeting.rounds.lose(1)
    nccl.made[0].later.clear()
    with pytest.raises(RegroupError):
        group.gather(torch.arange(3))
    assert nccl.made[0].aborted


def test_a_step_that_overflows_is_left_out(two, monkeypatch):
    """In half precision on GPUs, whichever worker's gradients it was."""

    class Summed:
        device, sums_on_device = CPU, False

        def __init__(self, *_):
            pass

        def sum(self, numbers):
            numbers[3] += float("inf")

    monkeypatch.setattr(collectives, "HostCollectiveGroup", Summed)
    for kind, moves in (("float16", False), ("float32", True)):
        session = session_of(compute_type=kind)
        before = [p.detach().clone() for p in session.learned.parameters()]
        session.inputs.device, session.inputs.on_gpu = torch.device("cuda"), True
        reduction = worker_group.AllReduce(two.members[0], session, two.generation, two.mailboxes[0])
        assert reduction.step(session, 0.5, False) == (0.5, False)
        moved = [not torch.equal(p, old) for p, old in zip(session.learned.parameters(), before, strict=True)]
        assert any(moved) == moves


class FakeWork:
    """A sum that is done when it is told so."""

    def __init__(self, done, error=None):
        self.done, self._error = done, error

    def is_completed(self):
        return self.done.is_set()

    def wait(self):
        self.done.wait()
        if self._error:
            raise RuntimeError(self._error)


class FakeNccl:
    """NCCL as a group sees it: the first sum makes connections, later ones may hang or fail."""

    Options = SimpleNamespace
    made: list

    def __init__(self, board, rank, size, options):
        assert board.clone() is board and options._timeout.total_seconds() > 0
        self.size, self.aborted, self.sums = size, False, 0
        self.joined, self.later, self.error = threading.Event(), threading.Event(), None
        self.prepare()
        FakeNccl.made.append(self)

    def prepare(self):
        self.joined.set()

    def allreduce(self, tensors, options=None):
        self.sums += 1
        if self.sums == 1:
            tensors[0].mul_(self.size)
            return FakeWork(self.joined)
        if not getattr(options, "asyncOp", True):
            return None
        return FakeWork(self.later, self.error)

    def allgather(self, outputs, inputs):
        for each in outputs[0]:
            each.copy_(inputs[0])
        return FakeWork(self.later, self.error)

    def abort(self):
        self.aborted = True


@pytest.fixture
def nccl(monkeypatch):
    """Stands for NCCL, which this host may not have."""
    monkeypatch.setattr(FakeNccl, "made", [], raising=False)
    monkeypatch.setattr(distributed, "ProcessGroupNCCL", FakeNccl, raising=False)
    for name in collectives._SETTINGS:
        monkeypatch.setenv(name, "")
    return FakeNccl


def test_a_sum_that_hangs_is_called_off_when_a_worker_is_lost(two, nccl):
    group = collectives.DeviceCollectiveGroup(two.members[0], two.generation, CPU)
    two.meeting.rounds.lose(1)
    with pytest.raises(RegroupError):
        group.sum(torch.ones(3))
    assert nccl.made[0].aborted


def test_a_sum_that_hangs_is_called_off_when_the_run_ends(two, nccl):
    group = collectives.DeviceCollectiveGroup(two.members[0], two.generation, CPU)
    two.members[0].stopped.set()
    with pytest.raises(RegroupError):
        group.sum(torch.ones(3))
    assert nccl.made[0].aborted


def test_a_sum_that_fails_means_meeting_again(two, nccl):
    group = collectives.DeviceCollectiveGroup(two.members[0], two.generation, CPU)
    nccl.made[0].error = "remote process exited"
    nccl.made[0].later.set()
    with pytest.raises(RegroupError, match="remote process"):
        group.sum(torch.ones(3))
    group.close()
    assert nccl.made[0].aborted


def test_sums_are_launched_and_waited_for_together(two, nccl):
    group = collectives.DeviceCollectiveGroup(two.members[0], two.generation, CPU)
    for _ in range(3):
        group.launch_sum(torch.ones(3))
    asked = []
    group.finish_sums(lambda: asked.append(None) or len(asked) > 1)
    assert len(asked) == 2 and nccl.made[0].sums == 4
    group.launch_sum(torch.ones(3))
    two.meeting.rounds.lose(1)
    with pytest.raises(RegroupError):
        group.finish_sums(lambda: False)
    assert nccl.made[0].aborted


def test_a_launched_sum_on_a_stream_of_its_own_is_waited_for(two, nccl, monkeypatch):
    """Whatever went wrong is said then."""
    monkeypatch.setattr(distributed, "AllreduceOptions", type("Options", (), {"__slots__": ()}))
    group = collectives.DeviceCollectiveGroup(two.members[0], two.generation, CPU)
    nccl.made[0].error = "remote process exited"
    nccl.made[0].later.set()
    with pytest.raises(RegroupError, match="remote process"):
        group.launch_sum(torch.ones(3))


@pytest.mark.parametrize("reduction", ["torch", "wire"])
def test_hosts_sum_what_captured_steps_launch_and_agree(two, reduction):
    for member in two.members:
        member.setup.cluster.reduction = reduction
    teams = [team_of(member) for member in two.members]

    def ask(rank):
        reduction = worker_group.AllReduce(two.members[rank], session_of(), two.generation, teams[rank].collective)
        teams[rank].reduction = reduction
        try:
            numbers = torch.full((20,), float(rank + 1))
            teams[rank].device_sums().launch(numbers)
            teams[rank].device_sums().finish(lambda: True)
            return numbers.unique().tolist(), teams[rank].all_agree(True), teams[rank].all_agree(rank == 0)
        finally:
            reduction.close()

    assert at_once(lambda: ask(0), lambda: ask(1)) == [([3.0], True, False)] * 2


def test_joining_that_hangs_is_left_behind(two, nccl, monkeypatch):
    """And lets go of the group if it comes about after all."""
    monkeypatch.setattr(nccl, "prepare", lambda self: None)
    two.meeting.rounds.lose(1)
    with pytest.raises(RegroupError):
        collectives.DeviceCollectiveGroup(two.members[0], two.generation, CPU)
    (thread,) = [each for each in threading.enumerate() if each.name == "nccl-joins"]
    nccl.made[0].joined.set()
    thread.join(10)
    assert not thread.is_alive() and nccl.made[0].aborted


@pytest.mark.parametrize("kind", [RuntimeError, TypeError])
def test_nccl_that_cannot_start_is_one_sentence(two, nccl, monkeypatch, kind):
    def fail(self):
        raise kind("Duplicate GPU\ndetected")

    monkeypatch.setattr(nccl, "prepare", fail)
    two.members[0].setup.cluster.failure.patience = 0.3
    with refused("external-failure NCCL_DEBUG") as caught:
        collectives.DeviceCollectiveGroup(two.members[0], two.generation, CPU)
    assert "\n" not in str(caught.value)


def test_nccl_that_failed_as_a_worker_was_lost(two, nccl, monkeypatch):
    def fail(self):
        two.meeting.rounds.lose(1)
        raise RuntimeError("connection closed")

    monkeypatch.setattr(nccl, "prepare", fail)
    with pytest.raises(RegroupError, match="connection closed"):
        collectives.DeviceCollectiveGroup(two.members[0], two.generation, CPU)


def test_gpus_of_their_own_are_summed_by_nccl_and_shared_ones_by_hosts(two, nccl, monkeypatch):
    chosen = []
    monkeypatch.setattr(collectives, "DeviceCollectiveGroup", lambda *given: chosen.append("nccl"))
    monkeypatch.setattr(collectives, "HostCollectiveGroup", lambda *given: chosen.append("gloo"))
    session = session_of(device=torch.device("cuda"))
    for count in (2, 1):
        two.members[0].setup.cluster.machines[0].gpus = count
        worker_group.AllReduce(two.members[0], session, two.generation, two.mailboxes[0])
    worker_group.AllReduce(two.members[0], session_of(), two.generation, two.mailboxes[0])
    assert chosen == ["nccl", "gloo", "gloo"]
