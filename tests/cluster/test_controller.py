"""The controller with tasks that are threads: what it starts, hears, tells, starts again and gives up."""

import threading
from functools import partial
from types import SimpleNamespace

import pytest
from wired import template_for

from penstock.cluster import controller as controller_module
from penstock.cluster.controller import Controller
from penstock.cluster.member import Member
from penstock.progress import Progress
from refusals import refused

LIMIT = 60.0
"""Seconds after which a test has failed."""


class Actor:
    """A task that does what a script says, in a thread. Its handle is itself."""

    pid, trouble = None, ""

    def __init__(self, setup, script):
        self.setup, self._script, self._status = setup, script, None
        self.killed = threading.Event()
        self._thread = threading.Thread(target=self._act, daemon=True)
        self._thread.start()

    def _act(self):
        with Member(self.setup) as member:
            status = self._script(member, self)
        self._status = -9 if self.killed.is_set() else status

    def poll(self):
        """Its exit status."""
        return self._status

    def kill(self):
        """It ends as soon as it looks."""
        self.killed.set()
        self._thread.join(LIMIT)
        self._status = -9


class Actors:
    """A launcher. `scripts` say what a task does, by its name or kind; they get its member and its actor."""

    interface = None

    def __init__(self, **scripts):
        self._scripts, self.started, self.closed = scripts, [], False

    def start(self, setup):
        """In a thread."""
        self.started.append((setup.task.id, setup.incarnation))
        name = setup.task.id.replace("-", "_")
        return Actor(setup, self._scripts.get(name) or self._scripts[setup.task.kind])

    def close(self):
        """Remember it."""
        self.closed = True


def lives(member, actor):
    """A task that is there until the run is over."""
    member.announce()
    while not member.stopped.wait(0.01) and not actor.killed.is_set():
        pass
    return 0


def wins(member, actor):
    """A worker that is done at once."""
    member.announce()
    member.ask("facts", graph="g")
    member.ask("progress", what="status", text="half way")
    member.ask("result", state="finished", loss=1.5)
    member.leave()
    return 0


def outcome_of(launcher, stop=lambda: False, heard=None, progress=None, **fields):
    """A run of a controller; and nothing of it is left."""
    controller = Controller(template_for(2, **fields), launcher, progress or Progress())
    result = controller.run(stop, (heard if heard is not None else []).append)
    assert launcher.closed
    return result


def test_result_facts_and_progress_arrive():
    class Shown(Progress):
        def status(self, line):
            self.line = line

    heard, shown = [], Shown()
    launcher = Actors(store=lives, worker_0=wins, worker_1=lives)
    outcome = outcome_of(launcher, heard=heard, progress=shown)
    assert outcome.state == "finished" and outcome.result == {"loss": 1.5} and outcome.recoveries == []
    assert heard == [{"graph": "g"}] and shown.line == "half way"
    assert launcher.started == [("store-a", 0), ("worker-0", 0), ("worker-1", 0)]
    assert [(task["id"], task["restarts"]) for task in outcome.tasks] == [(name, 0) for name, _ in launcher.started]


def test_coflows_that_cannot_be_are_refused_before_the_end():
    """What a task tells every half second is added up when the run is over: too late to fail."""

    def tells_nonsense(member, actor):
        member.announce()
        with refused("malformed-message worker-0"):
            member.ask("beat", incarnation=0, coflows={"batch": {"times": {"soon": 1}}})
        return wins(member, actor)

    outcome = outcome_of(Actors(store=lives, worker_0=tells_nonsense, worker_1=lives))
    assert outcome.state == "finished" and outcome.coflows == []


def test_dead_task_is_started_again_and_all_hear_of_it():
    def dies_once(member, actor):
        if member.setup.incarnation == 0:
            member.announce()
            return 3
        return lives(member, actor)

    def waits_for_it(member, actor):
        member.announce()
        while member.endpoint is not None and not seen(member):
            actor.killed.wait(0.01)
        return wins(member, actor)

    def seen(member):
        return (
            "store-a" in member.ask("here", address=member.endpoint.address, ready=True, incarnation=0).body and again
        )

    again: list[int] = []

    def store(member, actor):
        if member.setup.incarnation:
            again.append(1)
        return dies_once(member, actor)

    outcome = outcome_of(Actors(store=store, worker_0=waits_for_it, worker_1=lives))
    (recovery,) = outcome.recoveries
    assert recovery["task"] == "store-a" and recovery["cause"] == "exit status 3"
    assert {task["id"]: task["restarts"] for task in outcome.tasks} == {"store-a": 1, "worker-0": 0, "worker-1": 0}


def test_gives_up_with_a_sentence():
    def dies(member, actor):
        return 1

    launcher = Actors(store=dies, worker=lives)
    with refused("peer-lost store-a 3 1 store-a.log"):
        outcome_of(launcher, restarts=2)
    assert launcher.closed and launcher.started.count(("store-a", 2)) == 1


def test_silent_task_counts_as_dead():
    def silent(member, actor):
        if member.setup.incarnation:
            return lives(member, actor)
        member.ask("here", address=member.endpoint.address, ready=False, incarnation=0)
        actor.killed.wait(LIMIT)
        return 0

    def patient(member, actor):
        member.announce()
        while "store-a" not in member.ask("here", address=member.endpoint.address, ready=True, incarnation=0).body:
            actor.killed.wait(0.01)
        return wins(member, actor)

    outcome = outcome_of(Actors(store=silent, worker_0=patient, worker_1=lives), patience=1.5)
    assert [each["cause"] for each in outcome.recoveries] == ["silent for 1.5 s"]


def test_task_that_never_comes_is_given_up():
    def absent(member, actor):
        actor.killed.wait(LIMIT)
        return 0

    with refused("peer-lost store-a 1 failure.start_patience"):
        outcome_of(Actors(store=absent, worker=lives), start_patience=1.0)


def test_starting_is_no_silence(monkeypatch):
    """A busy machine may need minutes for a task's imports; a task that runs gives a sign every half second."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(controller_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    controller = Controller(template_for(1, patience=60.0, start_patience=300.0), Actors(), Progress())
    store, worker = controller.tasks["store-a"], controller.tasks["worker-0"]
    killed, lost = [], []
    for task in (store, worker):
        kill = partial(killed.append, task.spec.id)
        task.handle = SimpleNamespace(pid=None, trouble="", poll=lambda: None, kill=kill)
    monkeypatch.setattr(controller, "_lose", lambda task, cause: lost.append((task.spec.id, cause)))
    worker.address, clock.now = "tcp://there", 59.0
    controller._look_after_tasks()
    assert killed == lost == []
    clock.now, worker.heard = 299.0, 238.0
    controller._look_after_tasks()
    assert lost == [("worker-0", "silent for 60 s")] and killed == ["worker-0"]
    clock.now = worker.heard = 301.0
    with refused("peer-lost store-a 300"):
        controller._look_after_tasks()


def test_sentence_of_a_worker_is_the_run_s():
    def fails(member, actor):
        member.announce()
        member.ask("failed", message="The features are missing.")
        return 2

    with refused("unexpected-failure"):
        outcome_of(Actors(store=lives, worker_0=fails, worker_1=lives))


def test_who_is_lost_after_the_result_is_not_missed():
    def leaves_too(member, actor):
        """Dies without a word when the first worker has won."""
        member.announce()
        won.wait(LIMIT)
        return 1

    def wins_first(member, actor):
        status = wins(member, actor)
        won.set()
        return status

    won = threading.Event()
    outcome = outcome_of(Actors(store=lives, worker_0=wins_first, worker_1=leaves_too), restarts=0)
    assert outcome.state == "finished" and outcome.recoveries == []


def test_worker_that_leaves_too_early_is_missed():
    def leaves(member, actor):
        member.announce()
        return 0

    with refused("peer-lost worker-1 1"):
        outcome_of(Actors(store=lives, worker_0=lives, worker_1=leaves), restarts=0)


def test_word_to_stop_reaches_tasks_that_come_later():
    """Asked before any task is there."""

    def stops(member, actor):
        member.announce()
        assert member.asked.wait(LIMIT)
        member.ask("result", state="interrupted")
        return 0

    outcome = outcome_of(Actors(store=lives, worker_0=stops, worker_1=lives), stop=lambda: True)
    assert outcome.state == "interrupted"


def test_controller_interrupted_at_once_ends_its_tasks():
    def impatient():
        raise KeyboardInterrupt

    launcher = Actors(store=lives, worker=lives)
    with pytest.raises(KeyboardInterrupt):
        outcome_of(launcher, stop=impatient)
    assert launcher.closed


def introduced(monkeypatch, workers):
    """A controller that starts nothing, and the groups in which it makes its tasks known to all."""
    controller, groups = Controller(template_for(workers), Actors(), Progress()), []
    monkeypatch.setattr(controller, "_tell_all", lambda **body: groups.append(list(body["addresses"])))
    return controller, groups


def come(controller, task):
    """A task is there."""
    task.incarnation, task.ready, task.address = max(task.incarnation, 0), True, "tcp://127.0.0.1:1"
    controller._welcome(task)
    controller._introduce()


def test_tasks_of_a_large_run_are_made_known_together(monkeypatch):
    """A message to all for each of them would be the square of their number."""
    controller, groups = introduced(monkeypatch, 250)
    for task in controller.tasks.values():
        come(controller, task)
    # The first one by one, and then each time a third of those that are there.
    assert sum(len(group) == 1 for group in groups) <= 33 and len(groups) < 50
    assert [name for group in groups for name in group] == list(controller.tasks)


def test_the_last_task_to_come_is_not_kept_waiting(monkeypatch):
    controller, groups = introduced(monkeypatch, 250)
    first, *rest = controller.tasks.values()
    for task in rest:
        come(controller, task)
    groups.clear()
    come(controller, first)
    assert groups[-1][-1] == first.spec.id
    # Nor is one that was lost and is back, whoever else is still to come.
    groups.clear()
    rest[0].ready, first.incarnation = False, 1
    come(controller, first)
    assert groups == [[first.spec.id]]


def test_tasks_wait_for_no_further_ones_for_long(monkeypatch):
    controller, groups = introduced(monkeypatch, 250)
    tasks = list(controller.tasks.values())
    for task in tasks[:102]:
        come(controller, task)
    known = [name for group in groups for name in group]
    assert len(known) < 102
    controller._came -= 1.0
    controller._introduce()
    assert [name for group in groups for name in group] == [task.spec.id for task in tasks[:102]]
