"""The layer engine driven one layer at a time: what its hook records is enough for a backward pass."""

import weakref

import numpy as np
import pytest
import torch

from penstock.sampling import ALL, BatchKey, NeighbourSampler, TypedNeighbourSampler
from penstock.train.build import make_session
from penstock.train.dataset import inputs
from penstock.train.job import job_of
from penstock.train.layerwise import host, inference
from penstock.train.layerwise.host import frontiers
from penstock.train.layerwise.inference import LayerEngine
from training_graphs import community_graph, stage_threads, typed_graph

ANY = BatchKey(0, 0, 0)
SMALL = {"fanouts": [3, 3], "hidden": 16, "batch_size": 16, "embedding": 8, "dropout": 0.0, "inference_mb": 1}


class Tape:
    """The chunks of every layer, as full-graph training would keep them, and the backward pass through them."""

    def __init__(self, session, rows):
        self.session, self.plan, self.passes = session, session.inference().plan, []
        self.plan.start(rows, session.model.num_layers, session.model.num_layers)
        self.engine = LayerEngine(session.model, torch.device("cpu"), not session.graph.is_homogeneous)

    def forward(self):
        """All layers; returns the last level."""
        fetch = self.plan.first
        for number in range(self.session.model.num_layers):
            level, kept = self.plan.level(number), []
            self.engine.run(number, self.plan.chunks(number), fetch, level, kept.append)
            self.passes.append(kept)
            fetch = level.fetch
        return level

    def backward(self, gradients):
        """Weights' gradients, from those of the last level's rows by type; returns those of the inputs."""
        for kept in self.passes[::-1]:
            below = {}
            for done in kept:
                done.out.backward(gradients[done.chunk.node_type][done.chunk.rows])
                for name, ids in done.inputs.items():
                    if name in done.x:
                        rows = done.x[name].grad
                        empty = torch.zeros(self.session.graph.nodes[name].count, rows.shape[1])
                        below.setdefault(name, empty).index_add_(0, torch.from_numpy(ids), rows)
            gradients = below
        return gradients


def whole_graph_outputs(session, target):
    """(inputs by type, the model's outputs) on blocks that hold every edge."""
    graph, layers = session.graph, session.model.num_layers
    every = {name: np.arange(nodes.count) for name, nodes in graph.nodes.items()}
    x = {name: session.inputs.pull(name, ids).requires_grad_() for name, ids in every.items()}
    if graph.is_homogeneous:
        batch = NeighbourSampler(graph, [ALL] * layers, totals=True).sample(every[target], ANY)
        return x, session.model(batch.blocks, x[target][torch.from_numpy(batch.vertices[target])])
    typed = TypedNeighbourSampler(graph, [ALL] * layers, totals=True).sample(every, ANY)
    read = {name: x[name][torch.from_numpy(ids)] for name, ids in typed.vertices.items()}
    return x, session.model(typed.blocks, read)[target]


CASES = [
    (community_graph, "node", {"model": "sage"}),
    (community_graph, "node", {"model": "gat", "norm": "layer"}),
    pytest.param(community_graph, "node", {"model": "gcn", "fanouts": [2, 2, 2]}, marks=pytest.mark.long),
    (typed_graph, "paper", {"model": "rgcn"}),
]


@pytest.mark.parametrize(("graph", "target", "fields"), CASES, ids=["sage", "gat", "gcn", "typed"])
def test_a_backward_pass_through_recorded_chunks_is_that_of_the_whole_graph(graph, target, fields, monkeypatch):
    monkeypatch.setattr(host, "SHARE", 1 << 13)
    session = make_session(job_of({**SMALL, **fields}), graph())
    count = session.graph.nodes[target].count
    slope = torch.randn(count, session.task.out, generator=torch.Generator().manual_seed(3))

    x, out = whole_graph_outputs(session, target)
    (out * slope).sum().backward()
    expected = {name: weight.grad.clone() for name, weight in session.model.named_parameters()}
    session.model.zero_grad()

    tape = Tape(session, {target: np.arange(count)})
    level = tape.forward()
    torch.testing.assert_close(level.fetch(target, np.arange(count)), out.detach(), rtol=1e-5, atol=1e-5)
    assert len(tape.passes[0]) > 5 and stage_threads() == []
    inputs = tape.backward({target: slope})

    for name, weight in session.model.named_parameters():
        torch.testing.assert_close(weight.grad, expected[name], rtol=1e-4, atol=1e-4)
    for name, rows in x.items():
        torch.testing.assert_close(inputs[name], rows.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("graph", "target"), [(community_graph, "node"), (typed_graph, "paper")])
def test_chunks_of_a_layer_hold_every_vertex_once(graph, target, monkeypatch):
    monkeypatch.setattr(host, "SHARE", 1 << 13)
    session = make_session(job_of(SMALL | {"model": "sage"}), graph())
    wanted = {target: np.arange(session.graph.nodes[target].count)}
    tape = Tape(session, wanted)
    tape.forward()
    needed = frontiers(session.graph, wanted, [list(session.graph.edges)] * 2)
    for kept, expected in zip(tape.passes, needed[1:], strict=True):
        for name in session.graph.nodes:
            rows = [row for done in kept if done.chunk.node_type == name for row in done.chunk.rows.tolist()]
            assert rows == expected[name].tolist()
        assert all(len(done.out) == len(done.chunk.rows) for done in kept)


def test_without_gradients_nothing_is_recorded():
    session = make_session(job_of(SMALL | {"model": "sage"}), community_graph())
    tape = Tape(session, {"node": np.arange(200)})
    with torch.no_grad():
        tape.forward()
    assert all(not done.out.requires_grad and not done.x["node"].requires_grad for done in tape.passes[0])


@pytest.mark.parametrize("on_gpu", [False, True])
def test_rows_of_two_chunks_are_there_at_once_on_a_host_and_of_one_on_a_gpu(monkeypatch, on_gpu):
    monkeypatch.setattr(host, "SHARE", 1 << 13)
    monkeypatch.setattr(inference, "is_gpu", lambda _: on_gpu)
    session = make_session(job_of(SMALL | {"model": "sage"}), community_graph())
    wanted = {"node": np.arange(session.graph.nodes["node"].count)}
    plan, alive, most = session.inference().plan, list[weakref.ref](), list[int]()

    def source(name, ids):
        rows = session.inputs.pull(name, ids)
        alive.append(weakref.ref(rows))
        most.append(sum(each() is not None for each in alive))
        return rows

    given = list[weakref.ref]()

    class NotingEngine(LayerEngine):
        def layer(self, number, sampled, x):
            assert all(each() is None for each in given)
            out = super().layer(number, sampled, x)
            given.append(weakref.ref(out))
            return out

    plan.start(wanted, 2, 2)
    engine = NotingEngine(session.model, torch.device("cpu"), False)
    level = plan.level(0)
    with torch.no_grad():
        engine.run(0, plan.chunks(0), source, level)
    assert len(most) == len(given) > 5
    assert max(most) == 1 if on_gpu else max(most) <= 2


def test_rows_of_all_chunks_have_memory_of_one_size(monkeypatch):
    """So that what one chunk frees holds the next."""
    monkeypatch.setattr(host, "SHARE", 1 << 8)
    session = make_session(job_of(SMALL | {"model": "sage"}), community_graph(2_000))
    plan, sizes, buffers = session.inference().plan, list[list[int]](), set()

    def made(source, ids, most, pool):
        sizes[-1].append(max(most, len(ids)))
        rows = inputs.roomy_rows(source, ids, most, pool)
        assert np.array_equal(rows, source.read(ids))
        buffers.add(rows.untyped_storage().data_ptr())
        return rows

    monkeypatch.setattr(inference, "roomy_rows", made)
    monkeypatch.setattr(session.inputs, "pull", lambda _, ids, *more: made(session.inputs.sources["node"], ids, *more))
    plan.start({"node": np.arange(session.graph.nodes["node"].count)}, 2, 2)
    engine, source = LayerEngine(session.model, torch.device("cpu"), False), plan.first
    with torch.no_grad():
        for number in range(2):
            level, sizes = plan.level(number), [*sizes, []]
            for sampled, x in engine.read(plan.chunks(number), source):
                level.write(sampled.chunk, engine.layer(number, sampled, x))
            source = level.fetch
    assert all(len(each) > 5 and len(set(each)) == 1 for each in sizes)
    assert len(buffers) <= 4, "chunks are read into the buffers of those before them"


def test_rows_of_a_chunk_are_gone_when_the_next_one_comes(monkeypatch):
    monkeypatch.setattr(host, "SHARE", 1 << 13)
    session = make_session(job_of(SMALL | {"model": "sage"}), community_graph())
    plan = session.inference().plan
    plan.start({"node": np.arange(session.graph.nodes["node"].count)}, 2, 2)
    engine = LayerEngine(session.model, torch.device("cpu"), False)
    chunks = []
    for _, x in engine.read(plan.chunks(0), plan.first):
        assert len(x["node"]) and not any(chunks)
        chunks.append(x)
    assert len(chunks) > 5
