"""The registry of execution modes: what is chosen, refusals made from declarations, and a mode that a test adds."""

from contextlib import contextmanager

import pytest

from penstock.errors import PenstockError
from penstock.graph.schema import TASK_FACTS
from penstock.pipeline.schedule import Schedule
from penstock.pipeline.stages import StageTime
from penstock.train.build import make_session
from penstock.train.execution.loaded import LoadedExecution
from penstock.train.execution.support import CAPTURED, CAPTURED_SHARED, Demands, Support, reasons_against
from penstock.train.execution_modes import EXECUTION_MODES, ExecutionMode, choose_execution
from penstock.train.job import make_job
from penstock.train.session import Step
from training_graphs import SMALL, community_graph, trained


class CountingExecution(LoadedExecution):
    """A toy mode: its steps learn nothing."""

    name = "counting"

    @contextmanager
    def steps(self, schedule, start, pause, recorder):
        """Count batches."""
        yield _Counted(schedule, start)


class _Counted:
    def __init__(self, schedule, start):
        self._schedule, self._start = schedule, start

    def __iter__(self):
        for planned in self._schedule.from_position(self._start):
            yield [Step(planned.position, len(planned.seeds), 1.0, planned.last)]

    @contextmanager
    def aside(self):
        """Nothing is timed."""
        yield

    def times(self):
        """Nothing is timed."""
        return {"count": StageTime(0.0, 0.0, 1, 1)}


def _is_labor(sampler):
    return sampler.name == "labor"


def test_a_mode_is_one_entry(tmp_path, added):
    """A job whose sampler is the mode's own is executed by it, from the command to the report."""
    mode = ExecutionMode(
        "counting",
        lambda session, placed, group: CountingExecution(session),
        samplers=_is_labor,
    )
    added(EXECUTION_MODES, mode.name, mode)
    run = trained(community_graph(), tmp_path / "run", **{**SMALL, "sampler": "labor", "epochs": 2})
    assert run.result["train_loss"] == 1.0
    other = trained(community_graph(), tmp_path / "other", **{**SMALL, "epochs": 2})
    assert other.result["train_loss"] != 1.0


def test_what_a_mode_does_not_support_is_refused(added):
    support = Support(norms=frozenset({"none"}), any_optimiser=False)
    mode = ExecutionMode("narrow", lambda *given: LoadedExecution(given[0]), support, samplers=_is_labor)
    added(EXECUTION_MODES, mode.name, mode)
    with pytest.raises(PenstockError) as caught:
        make_session(
            make_job({**SMALL, "sampler": "labor", "norm": "layer", "optimiser": "Adagrad"}), community_graph()
        )
    assert caught.value.code == "unsupported-combination"
    assert all(word in str(caught.value) for word in ("narrow", "layer", "optimiser"))


def test_the_host_alone_is_loaded():
    session = make_session(make_job(SMALL), community_graph())
    assert choose_execution(session).name == session.execution.name == "loaded"
    assert Schedule(session.task.items, 4, 0).batch_size == 4


def test_reasons_come_from_the_declaration():
    class Task:
        name, facts = "node-classification", TASK_FACTS["node-classification"]

    job = make_job({"fanouts": [40, 2], "time": "t", "optimiser": "Adagrad"})
    demands = Demands(job, community_graph(), Task(), library_model=False, learned_rows=True, rows_on_host=True)
    assert len(reasons_against(CAPTURED_SHARED, demands)) == 4
    assert "loss is a function" in ", ".join(reasons_against(CAPTURED_SHARED, demands._replace(user_loss=True)))
    assert len(reasons_against(CAPTURED, demands._replace(user_loss=True))) == 3
    assert reasons_against(Support(), demands) == []
