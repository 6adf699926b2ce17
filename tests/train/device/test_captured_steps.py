"""Captured steps, replayed by an interpreter where there is no GPU: bursts, room, skipping, epochs, interruptions."""

import importlib.util

import numpy as np
import pytest
import torch

from device_steps import bursts, schedule_of, weights
from neighbourhoods import lists_weighed
from penstock.pipeline.schedule import START, Position, Schedule
from penstock.plan import Residence
from penstock.train.build import make_session
from penstock.train.execution_modes import choose_execution
from penstock.train.job import make_job
from training_graphs import community_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU itself is tested in test_captured"),
]
FEW = {"fanouts": [3, 2], "hidden": 8, "batch_size": 16, "epochs": 2, "device": "cpu", "threads": 1, "dropout": 0.3}
ONCE = {"epochs": 1}
"""An interpreter takes seconds; a second epoch begins in the tests of bursts, and with Adam."""
HOST = torch.device("cpu")


def session_of(graph, room=None, in_place=True, **fields):
    """A session whose device is the host, where kernels are interpreted."""
    from penstock.sampling.device.hops import Topology
    from penstock.store.device.tables import ResidentTable
    from penstock.train.device.decision import PlacementDecision, device_program, presampled_room
    from penstock.train.device.memory import Working
    from penstock.train.device.placed import Placed

    session = made_session(graph, **fields)
    job = session.job
    (edges,) = graph.edges.values()
    schedule = Schedule(session.task.items, session.task.batch_size, job.seed)
    room = room or presampled_room(session, schedule)
    residence = Residence("device", "device", 0, 0, 0, [])
    decision = PlacementDecision(residence, Working(0, torch.float32, {}), room, True, in_place, [])
    sizes = graph.num_nodes, graph.num_edges
    placed = Placed(HOST, decision, device_program(session), *sizes, job.needs_totals, room, [])
    weighed = lists_weighed(edges, job.list_weight, job.weight is not None, HOST)
    placed.topology = Topology(torch.from_numpy(edges.indptr), torch.from_numpy(edges.indices), weighed)
    placed.tables = {"node": ResidentTable(torch.from_numpy(graph.nodes["node"].fields["x"]))}
    session.execution = choose_execution(session, placed)
    return session


def made_session(graph, optimiser="Adam", **fields):
    """With an optimiser that leaves a step out by itself where torch has such a one, else one that is told to."""
    session = make_session(make_job({**FEW, "optimiser": optimiser, **fields}), graph)
    kinds = {"Adam": {"fused": True}, "SGD": {"fused": True, "momentum": 0.9}}
    options = fields.get("optimiser_options", kinds.get(optimiser, {}))
    session.optimiser = getattr(torch.optim, optimiser)(session.learned.parameters(), lr=0.01, **options)
    return session


def learned(session, pause=3, start=START, steps=None):
    """Train; returns the steps done and the weights. Each step is told, and the times of its stages are known."""
    schedule, done, told = schedule_of(session), [], []
    with session.execution.steps(schedule, start, bursts(schedule, pause), lambda *work: told.append(work)) as taken:
        for some in taken:
            done += some
            if steps is not None and len(done) >= steps:
                break
        assert set(taken.times()) == {"sample", "compute"}
    assert {item.position for *_, item in told} >= {step.position for step in done}
    return done, weights(session)


def loaded(session):
    """The same by the pipeline, on the host."""
    done = []
    with session.execution.steps(schedule_of(session), START, lambda _: 1, lambda *_: None) as steps:
        for some in steps:
            done += some
    return done, weights(session)


def assert_same(a, b, **close):
    assert [(s.position, s.examples, s.last) for s in a[0]] == [(s.position, s.examples, s.last) for s in b[0]]
    losses = (torch.tensor([step.loss for step in done]) for done, _ in (a, b))
    torch.testing.assert_close(*losses, **close)
    for name, values in a[1].items():
        torch.testing.assert_close(values, b[1][name], **close)


@pytest.fixture(scope="module")
def graph():
    graph = community_graph(120)
    (edges,) = graph.edges.values()
    edges.fields["w"] = 1 + (edges.indices % 4).astype(np.float32)
    return graph


@pytest.fixture(scope="module")
def usual(graph):
    """What a session with room for every batch learns, in bursts of three."""
    return learned(session_of(graph))


@pytest.mark.parametrize(
    "optimiser, fields",
    [
        ("Adam", {"epochs": 2}),
        ("SGD", {}),
        ("Adam", {"model": "gcn"}),
        pytest.param("SGD", {"model": "gcn"}, marks=pytest.mark.long),
        pytest.param("Adam", {"clip": 0.5, "model": "gin"}, marks=pytest.mark.long),
        ("SGD", {"clip": 0.5, "model": "gin"}),
        ("Adam", {"class_weights": "balanced"}),
        pytest.param("SGD", {"norm": "batch"}, marks=pytest.mark.long),
        pytest.param("Adam", {"model": "gat", "heads": 2}, marks=pytest.mark.long),
        ("SGD", {"model": "gat", "heads": 2, "norm": "batch", "fanouts": [2, 2]}),
        ("RMSprop", {}),
        ("NAdam", {"clip": 0.5}),
        ("SGD", {"optimiser_options": {"momentum": 0.9, "nesterov": True}}),
        *(
            pytest.param(name, {"optimiser_options": options}, marks=pytest.mark.long)
            for name, options in [
                ("ASGD", {}),
                ("Adadelta", {}),
                ("Adamax", {}),
                ("RAdam", {}),
                ("Rprop", {}),
                ("RMSprop", {"momentum": 0.9, "centered": True}),
                ("Adam", {"amsgrad": True}),
            ]
        ),
        pytest.param("SGD", {"class_weights": "balanced"}, marks=pytest.mark.long),
    ],
)
def test_they_learn_what_the_pipeline_learns(graph, optimiser, fields):
    fields = {**ONCE, **fields}
    right = loaded(made_session(graph, optimiser, **fields))
    in_place = fields.get("model", "sage") in ("sage", "gat")
    assert_same(learned(session_of(graph, None, in_place, optimiser=optimiser, **fields)), right, rtol=1e-3, atol=1e-4)


DRAWN = [
    {"fanouts": [-1, 2]},
    {"fanouts": [3, 40]},
    {"weight": "w"},
    {"edge_weight": "w"},
    {"sampler": "labor"},
    {"sampler": "labor", "shared_draws": 3},
    {"sampler": "ladies", "fanouts": [30, 30]},
    {"sampler": "fastgcn", "fanouts": [30, 60]},
    {"sampler": "saint-walk", "batch_size": 20, "layers": 2},
    {"sampler": "saint-edge", "batch_size": 20, "layers": 2},
    {"sampler": "cluster", "batch_size": 2, "clusters": 8, "layers": 2},
]


SELDOM = ({"fanouts": [-1, 2]}, {"sampler": "labor"}, {"sampler": "fastgcn", "fanouts": [30, 60]})
"""Draws that are like others here; whether they are the host's is tested of each sampler by itself."""


def draws_with_models():
    """Draws with one of the models in `make test`, and with the other, as those of `SELDOM`, in `make test-long`."""
    models = [("sage", True), ("gcn", False)]
    for number, fields in enumerate(DRAWN):
        name = "-".join(map(str, fields.values()))
        yield pytest.param(fields, *models[number % 2], id=name, marks=[pytest.mark.long] * (fields in SELDOM))
        yield pytest.param(fields, *models[1 - number % 2], id=f"{name}-other", marks=pytest.mark.long)


@pytest.mark.parametrize("fields, model, in_place", [*draws_with_models()])
def test_whatever_draws_they_learn_what_the_pipeline_learns(graph, fields, model, in_place):
    fields = {**ONCE, **fields}
    right = loaded(made_session(graph, model=model, **fields))
    fields = {**fields, "sample_on": "device"}
    in_place = in_place and fields.get("sampler", "neighbour") in ("neighbour", "labor", "ladies", "fastgcn")
    assert_same(learned(session_of(graph, None, in_place, model=model, **fields)), right, rtol=1e-3, atol=1e-4)


def test_a_batch_that_lacks_room_is_drawn_again_and_nothing_is_learned_twice(graph, usual):
    from penstock.sampling.device.block import Room

    for room in (Room((16, 20, 40), (16, 30)), Room((16, 61, 110), (48, 96))):
        tight = session_of(graph, room)
        assert_same(learned(tight), usual, rtol=1e-5, atol=1e-6)
        assert tight.execution.placed.room.holds(room) and tight.execution.placed.room != room


def test_running_statistics_of_batches_that_are_drawn_again_move_once(graph):
    from penstock.sampling.device.block import Room

    batch = {"norm": "batch", "optimiser": "SGD"}
    tight = learned(session_of(graph, Room((16, 20, 40), (16, 30)), **batch))
    assert_same(tight, learned(session_of(graph, **batch)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pause", [1, pytest.param(2, marks=pytest.mark.long), 100])
def test_bursts_change_nothing(graph, usual, pause):
    assert_same(learned(session_of(graph), pause), usual, rtol=0, atol=0)


def test_they_go_on_from_anywhere(graph, usual):
    session = session_of(graph)
    first, _ = learned(session, steps=4)
    epoch, batch = first[-1].position
    start = Position(epoch + 1, 0) if first[-1].last else Position(epoch, batch + 1)
    rest, last = learned(session, start=start)
    assert_same(([*first, *rest], last), usual, rtol=0, atol=0)


@pytest.mark.parametrize(
    "optimiser", ["RMSprop", *(pytest.param(name, marks=pytest.mark.long) for name in ("NAdam", "ASGD"))]
)
def test_batches_that_are_drawn_again_are_learned_once_by_any_optimiser(graph, optimiser):
    from penstock.sampling.device.block import Room

    tight = learned(session_of(graph, Room((16, 20, 40), (16, 30)), optimiser=optimiser))
    assert_same(tight, learned(session_of(graph, optimiser=optimiser)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("optimiser", "schedule", "options"),
    [
        ("SGD", "OneCycleLR", {"max_lr": 0.1, "total_steps": 2}),
        ("Adam", "CyclicLR", {"base_lr": 0.001, "max_lr": 0.1, "step_size_up": 2}),
        ("RMSprop", "StepLR", {"step_size": 1}),
    ],
)
def test_a_schedule_may_change_what_a_recorded_step_holds_fixed(graph, optimiser, schedule, options):
    def scheduled(session):
        made = getattr(torch.optim.lr_scheduler, schedule)(session.optimiser, **options)
        whole, done = schedule_of(session), []
        with session.execution.steps(whole, START, bursts(whole, 3), lambda *_: None) as steps:
            for some in steps:
                done += some
                if some[-1].last:
                    made.step()
        return done, weights(session)

    found = scheduled(session_of(graph, optimiser=optimiser))
    assert_same(found, scheduled(made_session(graph, optimiser)), rtol=1e-3, atol=1e-4)


def test_a_step_is_recorded_again_only_where_something_has_changed(graph, monkeypatch):
    from penstock.train.steps.runner import Eager

    session, recorded, record = session_of(graph), [], Eager.record
    monkeypatch.setattr(Eager, "record", lambda *given, **named: recorded.append(given[1]) or record(*given, **named))
    schedule = schedule_of(session)
    with session.execution.steps(schedule, START, bursts(schedule, 3), lambda *_: None) as steps:
        first = len(recorded)
        for number, some in enumerate(steps):
            if number == 1:
                assert len(recorded) == first
                session.optimiser.param_groups[0]["betas"] = (0.8, 0.99)
            if some[-1].position.epoch:
                break
    # The steps of both slots, and no draw.
    assert len(recorded) == first + 2


def test_a_warm_up_leaves_no_trace(graph):
    for optimiser in ("Adam", "SGD", "RMSprop"):
        session = session_of(graph, optimiser=optimiser)
        before = weights(session)
        with session.execution.steps(schedule_of(session), START, lambda _: 1, lambda *_: None):
            pass
        for name, values in weights(session).items():
            assert torch.equal(values, before[name])
        for state in session.optimiser.state.values():
            assert all(not values.any() for values in state.values())
        assert all(parameter.grad is None for parameter in session.learned.parameters())
