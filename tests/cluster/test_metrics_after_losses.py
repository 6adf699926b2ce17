"""Metrics of a run whose workers fail and are lost at any of its steps and validations: every line once, in order.

Three workers act their rounds out one after the other, with the real loop and the real way to catch up; what they do
together (a step, a validation) is a point that some of them have passed when a round breaks off and others have not.
"""

import json
from contextlib import suppress
from dataclasses import asdict
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.cluster.rendezvous import Round
from penstock.cluster.tasks import worker
from penstock.cluster.tasks.worker import LastRecords, Worker, mend_metrics
from penstock.cluster.worker.worker_group import progress_of
from penstock.pipeline.schedule import Position
from penstock.progress import SILENT
from penstock.train.callbacks.calls import Callbacks
from penstock.train.job import make_job
from penstock.train.loop import Loop
from penstock.train.metrics import METRICS
from penstock.train.run_files.checkpoints import TrainState
from penstock.train.run_files.records import Records
from penstock.train.run_files.run_folder import RunFolder
from penstock.train.session import Step
from penstock.train.steps.group import RegroupError
from penstock.wire.channel import PeerLost
from training_graphs import lines_of

WORLD, EPOCHS, BATCHES = 3, 3, 2
STEPS = range(1, EPOCHS * BATCHES + 1)
POINTS = [(step, ends) for step in STEPS for ends in (0, 1) if not ends or step % BATCHES == 0]
"""(n, 0): the n-th step; (n, 1): the end of the epoch behind it."""
LINES = [("epoch" if ends else "step", step) for step, ends in POINTS]


class Break(NamedTuple):
    """A round breaks off at a point that some workers have passed; one may be killed there, and the first again while
    it catches up."""

    point: int
    passed: set[int]
    killed: int | None = None
    hurt: bool = False


class Killed(Exception):  # noqa: N818
    """The process is gone."""


class Written(Records):
    """Metrics in the run folder, checkpoints in memory."""

    kept = True

    def __init__(self, folder, saved):
        self.append_metrics, self._saved = folder.append_metrics, saved

    def due(self, step):
        """After every third."""
        return step % 3 == 0

    def save(self, step, best_epoch, state):
        """The newest."""
        self._saved["state"] = json.loads(json.dumps(state))

    def save_best(self, epoch, weights):
        """Its number."""
        self._saved["best"] = epoch


class Acting(Worker):
    """A worker that does nothing but count. `fails` says at which points it is thrown out of its round."""

    def __init__(self, rank, folder, saved, formed):
        self._first, self._folder, self._saved_states = rank == 0, folder, saved
        self._train_state, self._from_file, self._begun = TrainState(), True, True
        if self._first and "state" in saved:
            self._train_state = TrainState(**saved["state"]["standing"])
        self._remembered = LastRecords()
        self._records = Written(folder, saved) if self._first else self._remembered
        self._setup = SimpleNamespace(cluster=SimpleNamespace(reduce="all-reduce"))
        self._member = SimpleNamespace()
        self._group = SimpleNamespace(meet=formed, reduction=None, collective=None, barrier=lambda name: None)
        self.fails = lambda point: False
        self._session = SimpleNamespace(
            job=make_job({"graph": "g", "fanouts": [2], "epochs": EPOCHS}),
            task=SimpleNamespace(
                losses={}, items=range(BATCHES), batch_size=1, metric=METRICS["accuracy"], evaluate=self._evaluate
            ),
            optimiser=SimpleNamespace(param_groups=[{"lr": 0.1}]),
            schedule=None,
            follow_schedule=lambda: None,
            decided={},
            callbacks=Callbacks(),
            execution=SimpleNamespace(
                steps=lambda schedule, start, *_: Steps(self.steps(start)), prepare_checkpoint=lambda: None
            ),
            inference=lambda: None,
            evaluate=lambda splits: self._evaluate(None, splits),
            is_finite=lambda: True,
            weights=dict,
            state=lambda train_state, tables=True: {"standing": asdict(train_state)},
        )

    @property
    def _inputs(self):
        return SimpleNamespace(step=0, settle=lambda: None, stay=lambda: None, begin_round=lambda number: None)

    def _evaluate(self, inference, splits):
        self._pass((self._train_state.step, 1))
        return {"val": {"accuracy": 1 / self._train_state.step}}

    def _pass(self, point):
        if self.fails(POINTS.index(point)):
            raise RegroupError(str(point))

    def steps(self, start):
        """From a position on."""
        for step in range(start.epoch * BATCHES + start.batch, EPOCHS * BATCHES):
            self._pass((step + 1, 0))
            yield [Step(Position(*divmod(step, BATCHES)), 1, float(step), step % BATCHES == BATCHES - 1)]

    def act(self):
        """Train until the round breaks off, or the run is over."""
        Loop(self._session, self._folder, self._train_state, SILENT, self._records).run(lambda: False)


class Steps:
    """See `train.steps.Steps`."""

    def __init__(self, steps):
        self._steps = steps

    def __iter__(self):
        return self._steps

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def aside(self):
        """Nothing is timed."""
        return self

    def times(self):
        """Nothing is timed."""
        return {}


class Play:
    """The workers of a run, round after round."""

    def __init__(self, folder):
        self._folder, self._saved, self._round = folder, {}, Round(0, 0, 0)
        self._workers = [self._started(rank) for rank in range(WORLD)]
        self._hurt = False

    def round(self, broken):
        """All meet, train until the round is broken off, and some are lost; None: until the run is over."""
        self._meet(broken is not None and broken.hurt)
        for rank, acting in enumerate(self._workers):
            first = len(POINTS) if broken is None else broken.point + (rank in broken.passed)
            acting.fails = lambda point, first=first: point >= first
            with suppress(RegroupError):
                acting.act()
        if broken is not None and broken.killed is not None:
            self._workers[broken.killed] = self._started(broken.killed)

    def state_of(self, member, rank):
        """As it comes over the wire."""
        return json.loads(json.dumps(self._workers[rank]._state()))

    def mend(self, *given):
        """What the first worker does to the folder, if it lives."""
        if self._hurt:
            raise Killed
        mend_metrics(*given)

    def _started(self, rank):
        return Acting(rank, self._folder, self._saved, lambda progress: self._round)

    def _meet(self, hurt):
        self._hurt = hurt
        while True:
            progress = [progress_of(acting._train_state) for acting in self._workers]
            source = max(range(WORLD), key=lambda rank: (progress[rank], -rank))
            self._round = Round(self._round.generation + 1, source, progress[source])
            try:
                for acting in reversed(self._workers):
                    assert not acting._catch_up()
                return
            except Killed:
                self._hurt, self._workers[0] = False, self._started(0)


BREAKS = st.builds(
    Break,
    st.integers(0, len(POINTS) - 1),
    st.sets(st.integers(0, WORLD - 1)),
    st.none() | st.integers(0, WORLD - 1),
    st.booleans(),
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A new run folder, as often as it is asked."""

    def made():
        path = tmp_path_factory.mktemp("metrics")
        folder = RunFolder.create(make_job({"graph": "g", "fanouts": [2], "run": str(path / "run")}), "run", False)
        folder.close()
        return folder

    return made


def assert_all_lines(folder):
    """Every line once, in order, with its own loss."""
    written = lines_of(folder.path)
    assert [(line["kind"], line["step"]) for line in written] == LINES
    losses = [line["step"] - 1.0 if line["kind"] == "step" else line["step"] - 1.5 for line in written]
    assert [line["loss"] for line in written] == losses


@given(st.lists(BREAKS, max_size=4))
@example([Break(2, {1}), Break(4, {2}, 0)])
@example([Break(3, {2}), Break(3, set(), hurt=True)])
def test_every_line_is_written_once(folders, breaks):
    folder = folders()
    play = Play(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "state_of", play.state_of)
        patch.setattr(worker, "mend_metrics", play.mend)
        patch.setattr(worker, "take_state", lambda session, state, name: TrainState(**state["standing"]))
        patch.setattr(worker, "AllReduce", lambda *given: None)
        for each in sorted(breaks, key=lambda each: each.point):
            play.round(each)
        play.round(None)
    assert_all_lines(folder)


def test_an_epoch_ends_once_though_its_model_could_not_be_kept_at_first(folders, monkeypatch):
    """Of a single worker, who takes nobody's place: its embeddings are with a store that is lost meanwhile."""
    folder, saved = folders(), {}
    alone = Acting(0, folder, saved, None)

    def lost():
        raise PeerLost("A store is gone.")

    alone._session.weights = lost
    for _ in range(2):
        with pytest.raises(PeerLost):
            alone.act()
        train_state = alone._train_state
        assert (
            train_state.ending and not train_state.epoch_seconds and train_state.best_epoch < 0 and "best" not in saved
        )
    alone._session.weights = dict
    alone.act()
    assert_all_lines(folder)
    assert len(alone._train_state.epoch_seconds) == EPOCHS
    assert saved["best"] == alone._train_state.best_epoch == 1 and alone._train_state.without_gain == EPOCHS - 1
