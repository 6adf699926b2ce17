"""Modules of the user's own, trained on the whole graph."""

import numpy as np
import pytest
import torch

from penstock.pipeline.schedule import START, Schedule
from penstock.trace.allocations import peak_of
from penstock.train.build import make_session
from penstock.train.device.host_trial import Noted
from penstock.train.execution_modes import EXECUTION_MODES
from penstock.train.job import make_job
from penstock.train.layerwise.host import Reach
from penstock.train.run_context import run_context
from penstock.train.whole import own_module
from penstock.train.whole.execution import decided_steps
from penstock.train.whole.traced import traced_host_steps
from refusals import refused
from training_graphs import community_graph, lines_of, trained, typed_graph

WHOLE = {"sampler": "whole", "layers": 2, "epochs": 3, "evaluate_every": 0, "hidden": 16}
CODE = '''
import torch

class Plain(torch.nn.Module):
    """Two layers that sum neighbours."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.second = torch.nn.Linear(inputs, 8), torch.nn.Linear(8, outputs)

    def forward(self, x, edge_index):
        for layer in (self.first, self.second):
            messages = layer(x)
            x = messages + torch.zeros_like(messages).index_add_(0, edge_index[1], messages[edge_index[0]]) / 4
        return x


class Typed(torch.nn.Module):
    """One sum of cited papers."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.own = torch.nn.ModuleDict({name: torch.nn.Linear(width, outputs) for name, width in inputs.items()})

    def forward(self, x, edges):
        out = {name: self.own[name](rows) for name, rows in x.items()}
        for (source, _, target), pairs in edges.items():
            out[target] = out[target].index_add(0, pairs[1], out[source][pairs[0]] / 3)
        return out
'''


def losses(run):
    return [line["loss"] for line in lines_of(run.path) if line["kind"] == "epoch"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own_models.py"
    path.write_text(CODE)
    return path


def reference(graph, run, **fields):
    """One batch of all training vertices with whole neighbourhoods."""
    return trained(
        graph, run, **{**WHOLE, **fields, "sampler": "neighbour", "fanouts": [-1, -1], "batch_size": 1 << 20}
    )


@pytest.mark.parametrize("name", ["Plain", "Typed"])
def test_losses_are_those_of_one_batch(tmp_path, file, name):
    graph = typed_graph() if name == "Typed" else community_graph()
    fields = {"module": f"{file}:{name}", "embedding": 8, "clip": 0.5}
    expected = losses(reference(graph, tmp_path / "one", **fields))
    found = losses(trained(graph, tmp_path / "whole", **WHOLE, **fields))
    np.testing.assert_allclose(found, expected, rtol=2e-5)


@pytest.mark.parametrize("task", ["node-classification", "link-prediction"])
def test_neighbourhoods_are_read_once(tmp_path, file, monkeypatch, task):
    read = []
    batches = Reach.batches
    monkeypatch.setattr(Reach, "batches", lambda *given: read.append(given) or batches(*given))
    fields = {"module": f"{file}:Plain", "task": task, "steps_per_epoch": 2, "evaluate_every": -1, "rank_against": 20}
    run = trained(community_graph(), tmp_path / "run", **{**WHOLE, **fields})
    assert len(read) == 2
    found = losses(run)
    assert found[-1] < found[0]


def test_a_module_object(tmp_path, file):
    space = {}
    exec(compile(CODE, str(file), "exec"), space)
    torch.manual_seed(1)
    run = trained(community_graph(), tmp_path / "run", model=space["Plain"](4, 4), **WHOLE)
    assert losses(run)[-1] < losses(run)[0]


def test_what_does_not_fit_is_a_sentence(tmp_path, file, monkeypatch):
    monkeypatch.setattr(own_module, "free_bytes", lambda *_: 1000)
    with refused("out-of-memory module steps_per_epoch"):
        trained(community_graph(), tmp_path / "run", module=f"{file}:Plain", **WHOLE)


@pytest.mark.parametrize("name", ["Plain", "Typed"])
def test_what_is_predicted_is_what_steps_take(tmp_path, file, name):
    """The traced steps' largest memory, beside that of real steps of the same session."""
    graph = typed_graph(count=1000) if name == "Typed" else community_graph(3000)
    job = make_job(
        {**WHOLE, "module": f"{file}:{name}", "embedding": 8, "device": "cpu", "evaluate_every": -1, "threads": 1}
    )
    with run_context(job):
        session = make_session(job, graph)
        schedule = Schedule(session.task.items, session.task.batch_size, job.draw_seed, job.epochs)
        ((step, predicted),) = decided_steps(session, schedule)
        assert predicted.method == "trace"
        events, further = traced_host_steps(session, step)
        taken = Noted()
        with session.execution.steps(schedule, START, lambda _: 1, lambda *_: None) as steps, taken:
            for _ in steps:
                pass
        facts = session.execution.facts()
    inside = {event.storage for event in events if event.bytes > 0 and event.moment.startswith("step")}
    found = peak_of([event for event in events if event.storage in inside]).bytes
    assert further == 0 and found == pytest.approx(peak_of(taken.events).bytes, rel=0.02)
    assert facts["predicted_by"] == "trace" and facts["predicted_mb"] > found / (1 << 20)


def test_the_mode_takes_modules():
    assert EXECUTION_MODES["whole"].support.user_modules
