"""What a worker tries again, and for how long; rounds themselves are acted out."""

from types import SimpleNamespace

import pytest

from penstock.cluster.tasks import worker
from penstock.cluster.tasks.worker import Worker
from penstock.pipeline.stages import StageError
from penstock.train.run_files.checkpoints import TrainState
from penstock.train.steps.group import RegroupError
from penstock.wire.channel import PeerLost, RemoteError
from refusals import refused

PATIENCE, START_PATIENCE = 10.0, 100.0


class Acting(Worker):
    """A worker whose rounds are steps of a script: what each raises, which takes a second; None: the run ends."""

    def __init__(self, script):
        self._member = SimpleNamespace(
            round=0, stopped=SimpleNamespace(is_set=lambda: False, wait=lambda seconds: None)
        )
        failure = SimpleNamespace(patience=PATIENCE, start_patience=START_PATIENCE)
        self._setup = SimpleNamespace(cluster=SimpleNamespace(failure=failure))
        self._group = SimpleNamespace(generation=0, reduction=None)
        self._train_state, self._stuck = TrainState(), None
        self.now, self.rounds, self._script = 0.0, 0, script

    def _catch_up(self):
        self._group.generation += 1
        self.rounds += 1
        self.now += 1.0
        raised = self._script(self)
        if raised is not None:
            raise raised
        return False

    def _train(self):
        pass

    def _wait_for_the_end(self):
        pass


@pytest.fixture
def act(monkeypatch):
    """Run a script by its own clock: how many rounds it took."""

    def acted(script):
        acting = Acting(script)
        monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: acting.now))
        acting.run()
        return acting.rounds

    return acted


def in_stage(error):
    """As the pipeline tells what one of its threads raised."""
    try:
        raise StageError("sample", 3) from error
    except StageError as told:
        return told


@pytest.mark.parametrize("type_", ["PushMissing", "StepPast", "PeerLost"])
def test_what_an_owner_misses_is_brought_again(act, type_):
    error = RemoteError("do the step again", type_)
    assert act(lambda acting: error if acting.rounds == 1 else None) == 2
    assert act(lambda acting: in_stage(error) if acting.rounds == 1 else None) == 2


def test_what_is_refused_is_not_tried_again(act):
    with refused("unexpected-failure", RemoteError):
        act(lambda acting: RemoteError("no such field") if acting.rounds == 1 else None)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RemoteError("owes", "PushMissing", "step-conflict"), "step-conflict owes"),
        (PeerLost("silent"), "peer-lost silent"),
        (RegroupError("left"), "peer-lost 20 left"),
    ],
    ids=repr,
)
def test_no_step_is_tried_for_ever(act, error, said):
    tried = []

    def always(acting):
        tried.append(acting.now)
        return error

    with refused(said):
        act(always)
    assert 20 <= tried[-1] - tried[0] < 22


def test_the_time_begins_anew_when_a_step_is_done_or_a_loss_is_known(act):
    def steps(acting):
        acting._train_state.step += 1
        return RegroupError("left") if acting.rounds < 60 else None

    def losses(acting):
        acting._member.round = acting._group.generation if acting.rounds % 2 else acting._group.generation - 1
        return RegroupError("left") if acting.rounds < 60 else None

    assert act(steps) == act(losses) == 60


def test_a_task_that_is_started_again_has_time_to_start(act):
    """Its imports are no silence: once a loss is known, a step is tried for as long as starting may take, and more."""
    tried = []

    def lost_once(acting):
        acting._member.round = 1
        tried.append(acting.now)
        return PeerLost("silent")

    with refused("peer-lost"):
        act(lost_once)
    assert 120 <= tried[-1] - tried[0] < 123
