"""Rows of edges that lie with the lists, where a device draws: what is learned is what the host's batches teach."""

import importlib.util

import pytest
import torch

from interpreted_kernels import device_with_free_memory
from penstock.pipeline.schedule import Position, Schedule
from penstock.progress import Progress
from penstock.train.build import make_session
from penstock.train.execution_modes import choose_execution
from penstock.train.job import make_job
from training_graphs import carrying_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU itself is tested in test_library_on_gpu"),
]
FEW = {"fanouts": [3, 2], "hidden": 8, "batch_size": 24, "epochs": 1, "device": "cpu", "threads": 1}
FIELDS = ["edge_attr", "far"]


class Weighed(torch.nn.Module):
    """Adds up weighed neighbours."""

    def __init__(self, width, out):
        super().__init__()
        self.own, self.others = torch.nn.Linear(width, out), torch.nn.Linear(width, out)

    def forward(self, x, edge_index, edge_weight, edge_attr):
        messages = self.others(x)[edge_index[0]] * (edge_weight + edge_attr.sum(1))[:, None]
        return self.own(x).index_add(0, edge_index[1], messages)


def session_of(graph, module, **fields):
    torch.manual_seed(0)
    model = Weighed(graph.x.shape[1], int(graph.y.max()) + 1) if module else None
    session = make_session(make_job({**FEW, **fields}), graph, module=model)
    # Some weights of attention have no gradient but rounding, which Adam would magnify.
    session.optimiser = torch.optim.SGD(session.learned.parameters(), lr=0.05)
    return session


def trained(session):
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.seed, 1)
    with session.execution.steps(schedule, Position(0, 0), lambda position: 1, lambda *_: None) as steps:
        done = [step for some in steps for step in some]
    assert len(done) == schedule.batches
    return {name: values.clone() for name, values in session.learned.state_dict().items()}


@pytest.mark.parametrize(
    ("fields", "placement"),
    [
        pytest.param({"model": "gatv2", "edge_features": FIELDS}, "auto", marks=pytest.mark.long),
        ({"model": "gine", "edge_features": FIELDS}, {"topology": "pinned"}),
        ({"model": "transformer", "edge_features": FIELDS}, "auto"),
        ({"edge_features": FIELDS, "edge_weight": "edge_weight"}, "auto"),
        ({"edge_features": FIELDS, "edge_weight": "edge_weight"}, {"topology": "host"}),
        ({"model": "gine", "edge_features": FIELDS, "sample_on": "hybrid", "sample_threads": 2}, "auto"),
        ({"model": "gine", "edge_features": FIELDS, "sample_on": "auto"}, {"topology": "device"}),
    ],
    ids=str,
)
def test_the_same_is_learned_wherever_rows_of_edges_lie(monkeypatch, fields, placement):
    from penstock.train.device.placement import place

    device_with_free_memory(monkeypatch, lambda: 1 << 40)
    graph, module = carrying_graph(), "model" not in fields
    drawn = {"sample_on": "device"} if placement != {"topology": "host"} else {}
    session = session_of(graph, module, placement=placement, **{**drawn, **fields})
    placed = place(session, True, Progress())
    session.execution = choose_execution(session, placed)
    wanted = "device" if placement == "auto" else placement["topology"]
    assert placed.facts()["topology"] == wanted and not placed.is_captured
    assert placed.edges.on_device == (wanted != "host")
    host = session_of(graph, module, **{**fields, "sample_on": "auto"})
    found, expected = trained(session), trained(host)
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=1e-3, atol=1e-4)
    assert session.evaluate(["val"])["val"] == host.evaluate(["val"])["val"]
