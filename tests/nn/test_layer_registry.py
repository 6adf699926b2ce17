"""A new kind of layer is one file (averaging_layer.py) and one line in a table."""

import pytest

from penstock.errors import PenstockError
from penstock.nn import ModelOptions, build_model
from penstock.nn.layer_table import LAYERS
from penstock.pipeline.schedule import Position, Schedule
from penstock.train.build import make_session
from penstock.train.job import make_job
from training_graphs import SMALL, community_graph


@pytest.fixture(autouse=True)
def _averaging():
    with LAYERS.added("averaging", "averaging_layer:AVERAGING"):  # the one line
        yield


def test_a_new_layer_trains_and_infers():
    job = make_job({**SMALL, "epochs": 12, "model": "averaging"})
    session = make_session(job, community_graph())
    schedule = Schedule(session.task.items, session.task.batch_size, 0, 12)
    with session.execution.steps(schedule, Position(0, 0), lambda _: 1, lambda *_: None) as steps:
        losses = [step.loss for some in steps for step in some]
    assert sum(losses[-schedule.batches :]) < 0.9 * sum(losses[: schedule.batches])
    assert 0 <= session.evaluate(["val"])["val"]["accuracy"] <= 1


def test_what_a_layer_does_not_declare_is_refused():
    options = ModelOptions(model="averaging")
    with pytest.raises(PenstockError) as caught:
        build_model(options, {"a": 4, "b": 4}, 2, [("a", "to", "b")])
    assert caught.value.code == "unsupported-combination" and "averaging" in str(caught.value)
