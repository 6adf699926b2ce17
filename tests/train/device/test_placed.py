"""What is put where, and that training from there is training: with a device's memory made up, kernels interpreted."""

import importlib.util
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from device_steps import weights
from host_shares import Host, shared_on_host
from interpreted_kernels import device_with_free_memory
from penstock.pipeline.schedule import Position, Schedule
from penstock.plan.document import Plan, plan_text
from penstock.progress import Progress
from penstock.store.device.shards import shared_by_gpus, to_shares
from penstock.train.build import make_session
from penstock.train.execution_modes import choose_execution
from penstock.train.job import make_job, stored_job
from refusals import refused
from training_graphs import community_graph, stage_threads, typed_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU itself is tested in test_captured"),
]
FEW = {"fanouts": [3, 2], "hidden": 8, "batch_size": 16, "epochs": 1, "device": "cpu", "threads": 1}
PLENTY = 1 << 40


class Notes(Progress):
    """Keeps what a run says."""

    def __init__(self):
        super().__init__()
        self.said = []

    def note(self, text):
        self.said.append(text)


@pytest.fixture
def device_memory(monkeypatch):
    """A device of which a test says how much is free; a step takes a kilobyte a row."""
    free = [PLENTY]
    device_with_free_memory(monkeypatch, lambda: free[0], traced=True)
    return free


@pytest.fixture
def untraced(monkeypatch):
    """A device with room for everything, whatever steps take."""
    device_with_free_memory(monkeypatch, lambda: PLENTY)


def placed_session(graph, notes=None, **fields):
    """A session of the host's whose graph is placed as if the host were a device."""
    from penstock.train.device.placement import place

    session = make_session(make_job({**FEW, **fields}), graph)
    session.optimiser = torch.optim.Adam(session.learned.parameters(), lr=0.01, fused=True)
    before = {name: values.clone() for name, values in session.learned.state_dict().items()}
    session.execution = choose_execution(session, place(session, True, notes or Progress()))
    for name, values in session.learned.state_dict().items():
        assert torch.equal(values, before[name]), "the trial has changed the model"
    return session


def trained(session):
    """One epoch, by whatever way fits; returns the weights."""
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.seed, 1)
    steps = session.execution.steps(
        schedule, Position(0, 0), lambda position: schedule.batches - position.batch, lambda *_: None
    )
    with steps:
        done = [step for some in steps for step in some]
    assert len(done) == schedule.batches
    return {name: values.clone() for name, values in session.learned.state_dict().items()}


def plain(graph, **fields):
    """The same by the host."""
    session = make_session(make_job({**FEW, **fields}), graph)
    session.optimiser = torch.optim.Adam(session.learned.parameters(), lr=0.01, fused=True)
    return trained(session)


def assert_close(a, b):
    for name, values in a.items():
        torch.testing.assert_close(values, b[name], rtol=1e-3, atol=1e-4)


@pytest.mark.covering(1)
@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("width", [4, 40])
def test_features_that_two_share_are_read_as_those_of_one(untraced, monkeypatch, capture, width):
    """To the bit, in the table and as copied rows; the other process is a thread."""
    shared_on_host(monkeypatch)
    graph = community_graph(120)
    (nodes,) = graph.nodes.values()
    nodes.fields["x"] = np.random.default_rng(0).normal(size=(120, width)).astype(np.float32)
    host = Host(2)
    found = []

    def hold_the_other_share():
        with shared_by_gpus(host.group(1)):
            to_shares(nodes.x, torch.device("cpu"))

    for features in ("device", "sharded"):
        with ThreadPoolExecutor(1) as other, shared_by_gpus(host.group(0)):
            held = other.submit(hold_the_other_share) if features == "sharded" else None
            session = placed_session(graph, placement={"features": features}, capture=capture)
            if held is not None:
                held.result(30)
        facts = session.execution.placed.facts()
        assert facts["features"] == features and session.execution.placed.is_captured == capture
        found.append(trained(session))
    left, right = found
    assert all(torch.equal(values, right[name]) for name, values in left.items())


@pytest.mark.parametrize(
    ("placement", "captured"),
    [
        ("auto", True),
        pytest.param({"features": "pinned"}, True, marks=pytest.mark.long),
        ({"features": "pinned", "cache_rows": 40}, True),
        pytest.param({"features": "pinned", "cache_rows": 40, "cache_by": "degree"}, True, marks=pytest.mark.long),
        ({"features": "host"}, True),
        ({"topology": "host"}, False),
        ({"topology": "pinned", "features": "pinned"}, True),
    ],
)
def test_wherever_things_lie_the_same_is_learned(device_memory, placement, captured):
    graph, notes = community_graph(120), Notes()
    session = placed_session(graph, notes, placement=placement)
    assert session.execution.placed.is_captured == captured
    facts = session.execution.placed.facts()
    for name, where in ({} if placement == "auto" else placement).items():
        if name != "cache_by":
            assert facts[name] == where
    assert (facts["topology"], facts["features"]) == ("device", "device") or placement != "auto"
    assert notes.said and notes.said == facts["why"]
    assert facts["predicted_by"] == "traced"
    assert_close(trained(session), plain(graph))
    if facts["cache_rows"]:
        assert 0 < session.execution.placed.facts()["hit_rate"] <= 1


@pytest.mark.parametrize(
    "placement", ["auto", {"features": "pinned", "cache_rows": 40}, {"features": "host"}, {"topology": "host"}]
)
def test_the_plan_of_a_run_has_where_things_lie(device_memory, placement):
    """It decides the same again, and says why."""
    from penstock.train.run import decided_plan

    session = placed_session(community_graph(120), placement=placement)
    session.placed = session.execution.placed
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.seed, session.job.epochs)
    plan = Plan.model_validate_json(plan_text(decided_plan(session, schedule, [])))
    facts = session.placed.facts()
    planned = stored_job(plan.job, "the plan").placed
    assert (planned.topology, planned.features) == (facts["topology"], facts["features"])
    assert (planned.cache_rows or 0) == facts["cache_rows"] == plan.execution["cache_rows"]
    assert plan.execution["features"] == facts["features"]
    assert all(plan.reasons[name] for name in plan.execution if name != "mode")
    assert any(note in plan.reasons["features"] for note in facts["why"])


def test_too_little_memory_moves_things_out_and_then_is_refused(device_memory):
    graph = community_graph(120)
    roomy = placed_session(graph)
    working = roomy.execution.placed.decision.working.bytes
    features = graph.nodes["node"].fields["x"].nbytes
    device_memory[0] = int((working + sum(array.nbytes for array in _lists(graph)) + features // 2) / 0.92)
    session = placed_session(graph)
    facts = session.execution.placed.facts()
    assert "pinned" in (facts["topology"], facts["features"])
    assert_close(trained(session), plain(graph))
    device_memory[0] = working // 2
    with refused("out-of-memory batch_size"):
        placed_session(graph)


def _lists(graph):
    (edges,) = graph.edges.values()
    return edges.indptr, edges.indices


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"capture": False}, "capture is off"),
        ({"sampler": "labor", "sample_on": "host", "first_layer": "aggregate"}, "lists that have no weights"),
        ({"sample_on": "host"}, "sample_on is host"),
        ({"optimiser": "Adagrad"}, "counts its steps on the host"),
        ({"optimiser": "SGD", "optimiser_options": {"momentum": 0.9, "dampening": 0.1}}, "dampened momentum"),
    ],
)
def test_what_is_not_captured_says_why_and_learns_the_same(untraced, fields, said):
    graph, notes = community_graph(120), Notes()
    session = placed_session(graph, notes, **fields)
    assert not session.execution.placed.is_captured
    assert any(said in sentence for sentence in notes.said)
    assert_close(trained(session), plain(graph, **fields))


UNFUSED = ("RMSprop", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD", "Rprop")


@pytest.mark.parametrize(
    "fields",
    [
        *({"optimiser": each} for each in UNFUSED[:2]),
        *(pytest.param({"optimiser": each}, marks=pytest.mark.long) for each in UNFUSED[2:]),
        {"optimiser_options": {"fused": False}},
    ],
    ids=str,
)
def test_memory_of_optimisers_without_fused_steps_is_traced(device_memory, fields):
    facts = placed_session(community_graph(120), **fields).execution.placed.facts()
    assert facts["predicted_by"] == "traced" and facts["why"][-1] == "Steps are captured once and replayed."


def test_batch_normalisation_is_captured(untraced):
    graph = community_graph(120)
    session = placed_session(graph, norm="batch")
    found, right = trained(session), plain(graph, norm="batch")
    assert session.execution.placed.is_captured
    # A bias before it has no gradient but rounding, which Adam makes as large as any, and the running mean follows it.
    assert_close(*({name: each for name, each in of.items() if "running_var" in name} for of in (found, right)))
    assert all(torch.equal(each, right[name]) for name, each in found.items() if "num_batches" in name)


@pytest.mark.parametrize("fields", [{}, {"sampler": "labor"}, {"placement": {"features": "pinned"}}], ids=str)
def test_batches_of_launched_steps_are_drawn_by_the_thread_that_computes(untraced, fields):
    graph = community_graph(120)
    session = placed_session(graph, capture=False, **fields)
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.seed, 1)
    with session.execution.steps(schedule, Position(0, 0), lambda _: 1, lambda *_: None) as steps:
        done = []
        for some in steps:
            assert not stage_threads()
            done += some
            with steps.aside():
                pass
        assert {"sample", "compute"} == set(steps.times()) and min(each.busy for each in steps.times().values()) > 0
    assert [step.position.batch for step in done] == list(range(schedule.batches))
    assert_close(weights(session), plain(graph, **{**fields, "placement": "auto"}))


def test_steps_that_end_early_leave_no_batch_behind(untraced):
    graph = community_graph(120)
    session = placed_session(graph, capture=False)
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.seed, 1)
    before = weights(session)
    with session.execution.steps(schedule, Position(0, 0), lambda _: 1, lambda *_: None) as steps:
        next(iter(steps))
    session.learned.load_state_dict(before)
    session.optimiser.state.clear()
    assert_close(trained(session), plain(graph))


def test_hybrid_drawing_is_measured_or_forced(untraced):
    graph = community_graph(120)
    for fields in ({"sample_on": "hybrid"}, {"capture": False}):
        notes = Notes()
        session = placed_session(graph, notes, sample_threads=2, **fields)
        assert_close(trained(session), plain(graph))
        assert "sample_on" in fields or any("a batch takes the device" in sentence for sentence in notes.said)


def test_graphs_of_several_types(untraced):
    for capture in (True, False):
        session = placed_session(typed_graph(), model="rgcn", capture=capture)
        assert session.execution.placed.facts()["topology"] == "device"
        assert_close(trained(session), plain(typed_graph(), model="rgcn"))
    with refused("unsupported-combination cache_rows"):
        placed_session(typed_graph(), placement={"features": "pinned", "cache_rows": 3})
    for fanouts in ([40, 2], [-1, 2]):
        session = placed_session(typed_graph(), fanouts=fanouts)
        assert session.execution.placed.facts()["topology"] == "device"


@pytest.mark.parametrize(
    "room",
    [None, 3, [[16, 20]], [[16, 20, 30], [8]], [[8, 20, 30], [8, 8]], [[16, 0, 1], [1, 1]], [[16, 30, 20], [8, 8]]],
)
def test_a_room_that_is_no_jobs_is_refused(untraced, room):
    session = placed_session(community_graph(120))
    with refused("mismatched-inputs"):
        session.execution.placed.take_room(room)
    session.execution.placed.take_room([[16, 70, 130], [60, 170]])
    assert session.execution.placed.room.edges == (60, 170)
