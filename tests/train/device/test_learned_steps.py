"""Captured steps that learn embeddings in device memory: the host's losses and rows, and its bits if interrupted."""

import importlib.util

import numpy as np
import pytest
import torch

from device_steps import bursts, schedule_of, weights
from penstock.graph.data import NodeSet
from penstock.graph.folder import Graph
from penstock.pipeline.schedule import START, Position, Schedule
from penstock.plan import Residence
from penstock.sampling.device.block import Room
from penstock.train.build import make_session
from penstock.train.execution_modes import choose_execution
from penstock.train.job import make_job
from penstock.train.optimisers import make_schedule
from training_graphs import community_graph, lists_of, typed_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU itself is tested in test_typed_on_gpu"),
]
FEW = {"fanouts": [3, 2], "hidden": 8, "batch_size": 24, "epochs": 2, "device": "cpu", "threads": 1, "embedding": 6}
FEWER = {"fanouts": [2, 2], "epochs": 1}
"""An interpreter takes seconds for each batch of attention, and of pairs of edges.

A softmax over one neighbour would have no gradient but that of rounding."""
HOST = torch.device("cpu")


def made_session(graph, **fields):
    session = make_session(make_job({**FEW, **fields}), graph)
    session.optimiser = torch.optim.Adam(session.learned.parameters(), lr=0.01, fused=True)
    session.schedule = make_schedule(session.optimiser, session.job)
    return session


def session_of(graph, room=None, **fields):
    """A session whose device is the host, where kernels are interpreted; its embeddings are in that device's memory."""
    from penstock.store.device.embedding import DeviceEmbeddingTable
    from penstock.train.device.decision import PlacementDecision, presampled_room
    from penstock.train.device.memory import Working
    from penstock.train.device.placed_graph import place_as_decided

    session = made_session(graph, **fields)
    inputs, schedule = session.inputs, Schedule(session.task.items, session.job.batch_size, session.job.seed)
    inputs.tables = {name: DeviceEmbeddingTable(table, HOST) for name, table in inputs.tables.items()}
    room = room or presampled_room(session, schedule)
    residence = Residence("device", "device", 0, 0, 0, [])
    decision = PlacementDecision(residence, Working(0, torch.float32, {}), room, True, False, [])
    session.execution = choose_execution(session, place_as_decided(session, decision, schedule))
    return session


def learned(session, pause=3, start=START, steps=None):
    schedule, done = schedule_of(session), []
    with session.execution.steps(schedule, start, bursts(schedule, pause), lambda *_: None) as taken:
        for some in taken:
            done += some
            if steps is not None and len(done) >= steps:
                break
    return done, weights(session), session.inputs.state()


def loaded(session):
    """The same by the pipeline, on the host."""
    done = []
    with session.execution.steps(schedule_of(session), START, lambda _: 1, lambda *_: None) as steps:
        for some in steps:
            done += some
    return done, weights(session), session.inputs.state()


def assert_same(a, b, rtol):
    """The same steps, with equal losses; what was learned is compared as a whole, since Adam's first steps of a
    gradient that is nearly zero depend on its sign.
    """
    assert [(s.position, s.examples, s.last) for s in a[0]] == [(s.position, s.examples, s.last) for s in b[0]]
    np.testing.assert_allclose([s.loss for s in a[0]], [s.loss for s in b[0]], rtol=rtol)
    pairs = [(name, values.detach().numpy(), b[1][name].detach().numpy()) for name, values in a[1].items()]
    for name, table in a[2].items():
        assert table["steps"] == b[2][name]["steps"]
        pairs += [(f"{name} {what}", table[what], b[2][name][what]) for what in set(table) - {"steps"}]
    for name, mine, right in pairs:
        assert np.linalg.norm(mine - right) <= 5 * rtol * np.linalg.norm(right) + 1e-6, name


@pytest.fixture(scope="module")
def graph():
    return community_graph(120, features=False)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"embedding_optimiser": "adagrad", "model": "gcn", "epochs": 1},
        {"embedding_optimiser": "dense-adam", "clip": 0.05, "epochs": 1},
        # Attention and links learn rows below, in graphs of several types.
        pytest.param({"model": "gat", "heads": 2, "clip": 0.05, **FEWER}, marks=pytest.mark.long),
        pytest.param({"task": "link-prediction", "batch_size": 150, **FEWER}, marks=pytest.mark.long),
    ],
)
def test_losses_and_rows_are_those_of_the_host(graph, fields):
    host = made_session(graph, **fields)
    done, *_ = loaded(host)
    ours = learned(session_of(graph, **fields))
    assert_same(ours, (done, weights(host), host.inputs.state()), rtol=2e-3)
    assert ours[2]["node"]["steps"] == len(done)


@pytest.fixture(scope="module")
def usual(graph):
    """What a session with room for every batch learns, in bursts of three."""
    return learned(session_of(graph))


def test_a_batch_that_lacks_room_steps_its_rows_once(graph, usual):
    tight = session_of(graph, Room((24, 30, 60), (30, 40)))
    assert_same(learned(tight), usual, rtol=1e-4)
    assert tight.execution.placed.room.rows != (24, 30, 60)


def test_an_interrupted_run_goes_on_with_the_same_bits_from_a_checkpoint(graph, usual):
    cut, again = (session_of(graph) for _ in range(2))
    first, *_ = learned(cut, pause=2, steps=4)
    again.learned.load_state_dict(cut.learned.state_dict())
    again.optimiser.load_state_dict(cut.optimiser.state_dict())
    again.inputs.restore(cut.inputs.state())
    epoch, batch = first[-1].position
    start = Position(epoch + 1, 0) if first[-1].last else Position(epoch, batch + 1)
    rest, *left = learned(again, pause=1, start=start)
    assert [s.loss for s in first + rest] == [s.loss for s in usual[0]]
    assert all(torch.equal(values, usual[1][name]) for name, values in left[0].items())
    (table,), (right,) = left[1].values(), usual[2].values()
    assert table["steps"] == right["steps"]
    assert all(np.array_equal(table[what], right[what]) for what in table)


# Several types: papers with features, authors and venues without, two relations between the same types, one without
# edges, and fields that no hop reaches.


@pytest.fixture(scope="module")
def typed():
    rng, plain = np.random.default_rng(2), typed_graph(48)
    nodes = {**plain.nodes, "venue": NodeSet(5), "field": NodeSet(4)}
    pairs = rng.integers(0, 16, 60), rng.integers(0, 48, 60)
    more = {
        ("author", "edits", "paper"): lists_of(*pairs, 16, 48),
        ("venue", "prints", "paper"): lists_of(np.arange(0), np.arange(0), 5, 48),
        ("paper", "about", "field"): lists_of(rng.integers(0, 48, 20), rng.integers(0, 4, 20), 48, 4),
    }
    written = plain.edges["author", "writes", "paper"]
    written.fields["alike"] = (np.arange(written.count) % 3 == 0).astype(np.int64)
    plain.edges["paper", "by", "author"].fields["apart"] = rng.random(written.count).astype(np.float32)
    return Graph(nodes, {**plain.edges, **more}, "papers")


ASKED = {"epochs": 1, "sample_on": "device"}
LINKS = {"task": "link-prediction", "target": "author__writes__paper", "held_out": [0.1, 0.1], "epochs": 1}
TYPED = {
    "rgcn": {"model": "rgcn", "dropout": 0.3},
    "bases, by relation": {
        "model": "rgcn",
        "bases": 2,
        "fanouts": [3, {"author__writes__paper": 2, "paper__by__author": 2, "paper__cites__paper": 1}],
        "embedding_optimiser": "adagrad",
        "epochs": 1,
    },
    "sum": {"model": "sage", "aggregate": "sum", "replace": True, "clip": 0.2, "epochs": 1},
    "gat": {"model": "gat", "heads": 2, "attention_dropout": 0.2, "norm": "layer", "residual": True},
    "hgt": {"model": "hgt", "heads": 2, "attention_dropout": 0.2, "dropout": 0.2, "input_dropout": 0.1, **FEWER},
    "whole lists": {
        "model": "rgcn",
        "fanouts": [-1, {"author__writes__paper": 40, "paper__by__author": 2}],
        "epochs": 1,
    },
    "whole lists, attended": {"model": "hgt", "heads": 2, "fanouts": [40, -1], **ASKED},
    "links": {**LINKS, "model": "rgcn", "corrupt": "both", "filtered": True, "batch_size": 32},
    # Were destinations alone replaced, the softmax would not depend on their type's bias, and Adam follow its rounding.
    "links, joint": {
        **LINKS,
        "model": "hgt",
        "heads": 2,
        "negatives": "joint",
        "corrupt": "both",
        "loss": "softmax",
        "batch_size": 32,
    },
    "links of one type": {**LINKS, "model": "sage", "target": "paper__cites__paper", "batch_size": 32},
    "classes of edges": {"task": "edge-classification", "model": "rgcn", "label": "alike", "epochs": 1},
    "numbers of edges": {"task": "edge-regression", "model": "rgcn", "label": "apart", "epochs": 1, "batch_size": 27},
}


SELDOM = ("gat", "whole lists, attended", "links, joint", "links of one type", "numbers of edges")
"""Their draws, layers and tasks are those of others: whole lists, attention, links, and labels of edges."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in SELDOM)) for name in TYPED])
def test_several_types_learn_what_the_host_learns(typed, name):
    fields = {"batch_size": 16, **TYPED[name]}
    host, ours = loaded(made_session(typed, **fields)), session_of(typed, **fields)
    assert set(ours.inputs.tables) == {"author", "venue", "field"}
    assert_same(learned(ours), host, rtol=2e-3)


def test_several_types_that_lack_room_are_drawn_again(typed):
    from penstock.train.device.decision import device_program

    fields = {"batch_size": 16, "model": "rgcn", "epochs": 1}
    usual = session_of(typed, **fields)
    expected, room = learned(usual), usual.execution.placed.room
    small = Room(
        (16, *(max(8, size // 2) for size in room.rows[1:])), tuple(max(8, s // 2) for s in room.edges), room.types
    )
    tight = session_of(typed, small, **fields)
    assert_same(learned(tight), expected, rtol=1e-3)
    found = tight.execution.placed.room
    assert found != small and found.types == room.types
    assert len(found.edges) == len(device_program(tight).draws)


@pytest.mark.parametrize(
    "task",
    [
        {"batch_size": 16, **FEWER},
        pytest.param({"model": "hgt", "heads": 2, "batch_size": 16, **FEWER}, marks=pytest.mark.long),
        pytest.param({**LINKS, "batch_size": 43}, marks=pytest.mark.long),
    ],
)
def test_several_types_resume_with_the_same_bits(typed, task):
    fields = {"model": "rgcn", "dropout": 0.2, **task}
    whole, cut, again = (session_of(typed, **fields) for _ in range(3))
    expected = learned(whole)
    first, *_ = learned(cut, pause=1, steps=1)
    again.learned.load_state_dict(cut.learned.state_dict())
    again.optimiser.load_state_dict(cut.optimiser.state_dict())
    again.inputs.restore(cut.inputs.state())
    again.execution.restore(cut.execution.state())
    rest, *left = learned(again, pause=1, start=Position(0, 1))
    assert [s.loss for s in first + rest] == [s.loss for s in expected[0]]
    assert all(torch.equal(values, expected[1][name]) for name, values in left[0].items())
    for name, table in expected[2].items():
        assert all(np.array_equal(left[1][name][what], values) for what, values in table.items())


def test_rates_follow_the_schedule_of_epochs(graph):
    session = session_of(graph, schedule="StepLR", schedule_options={"step_size": 1, "gamma": 0.0}, schedule_of="all")
    schedule, seen = schedule_of(session), []
    with session.execution.steps(schedule, START, bursts(schedule, 100), lambda *_: None) as steps:
        for some in steps:
            if some[-1].last:
                seen.append(session.inputs.state()["node"]["rows"].copy())
                session.schedule.step()
                session.follow_schedule()
    assert len(seen) == 2 and np.array_equal(*seen)


@pytest.mark.parametrize("optimiser", ["adam", "adagrad"])
def test_equal_gradients_give_the_hosts_bits(optimiser):
    """A recorded step rounds as the host's kernel does; rows that are not read, or past the end, stay as they are."""
    from penstock.store.device.embedding import DeviceEmbeddingTable
    from penstock.store.embedding import EmbeddingTable

    host, base = (EmbeddingTable("t", 40, 5, optimiser, 0.01, 3) for _ in range(2))
    ours, random = DeviceEmbeddingTable(base, HOST), np.random.default_rng(1)
    for _ in range(4):
        ids = random.permutation(40)[:17].astype(np.int32)
        gradients = random.normal(size=(17, 5)).astype(np.float32)
        rate, idle = torch.from_numpy(ours.rates(1)), torch.zeros(1, dtype=torch.bool)
        ours.step(torch.from_numpy(np.where(ids < 30, ids, 1 << 30)).int(), torch.from_numpy(gradients), rate, idle)
        ours.steps += 1
        host.push(ids[ids < 30], gradients[ids < 30])
    for name, values in host.state().items():
        assert np.array_equal(values, ours.state()[name]), name
