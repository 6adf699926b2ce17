"""Training on the whole graph beside the same models written with dense matrices in plain torch, and autograd."""

from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch.nn import functional

from penstock import Graph, NodeSet
from penstock.pipeline.schedule import START, Schedule
from penstock.train.build import make_session
from penstock.train.job import make_job
from penstock.train.whole.memory import Decision
from training_graphs import community_graph, typed_graph

EPOCHS = 5
MANY = "gcn", "gat"
"""Models whose many bins are tested often."""
EXACT = {torch.float64: 1e-9, torch.float32: 1e-4}
"""How far losses may be apart, relative to them; Adam magnifies rounding."""


def is_seldom(model, bins, dtype):
    """Whether a case is left to `make test-long`."""
    return bins not in (2, 3) and (dtype is torch.float32 or (bins == 17 and model not in MANY))


def matrix(edges, sources):
    """[destinations, sources]: how often each list names each source."""
    found = torch.zeros(len(edges.indptr) - 1, sources, dtype=torch.float64)
    targets = np.repeat(np.arange(len(found)), np.diff(edges.indptr))
    return found.index_put_((torch.from_numpy(targets), torch.from_numpy(edges.indices).long()), ONE, accumulate=True)


ONE = torch.ones((), dtype=torch.float64)


def mean_of(lists):
    return lists / lists.sum(1, keepdim=True).clamp_min(1)


def sage(p, layer, lists, x):
    neighbours = mean_of(lists) @ x
    return neighbours @ p(layer, "neighbours.weight").T + p(layer, "neighbours.bias") + x @ p(layer, "own.weight").T


def gcn(p, layer, lists, x):
    root = (lists.sum(1) + 1).rsqrt()
    whole = root[:, None] * (lists + torch.eye(len(lists), dtype=torch.float64)) * root
    return whole @ x @ p(layer, "linear.weight").T + p(layer, "bias")


def gat(p, layer, lists, x):
    heads, size = p(layer, "score_source").shape
    values = (x @ p(layer, "source.weight").T).view(-1, heads, size)
    read, own = ((values * p(layer, f"score_{end}")).sum(2) for end in ("source", "target"))
    scores = functional.leaky_relu(own[:, None] + read[None], 0.2)
    present = lists + torch.eye(len(lists), dtype=torch.float64)
    shares = scores.exp() * present[:, :, None]
    shares = shares / shares.sum(1, keepdim=True)
    out = torch.einsum("ijh,jhc->ihc", shares, values)
    bias = p(layer, "bias")
    return (out.flatten(1) if len(bias) == heads * size else out.mean(1)) + bias


LAYERS = {"sage": sage, "gcn": gcn, "gat": gat}


def plain_outputs(graph, model, p):
    """Outputs of all vertices, by two layers of dense products."""
    ((_, lists),) = graph.edges.items()
    nodes = graph.nodes["node"]
    lists, x = matrix(lists, nodes.count), torch.from_numpy(nodes.fields["x"]).double()
    return LAYERS[model](p, 1, lists, functional.relu(LAYERS[model](p, 0, lists, x)))


def relation_outputs(graph, p):
    """R-GCN: the papers' outputs."""
    kinds, types = list(graph.edges), list(graph.nodes)
    lists = {kind: mean_of(matrix(graph.edges[kind], graph.nodes[kind[0]].count)) for kind in kinds}
    x = {}
    for place, name in enumerate(types):
        rows = torch.from_numpy(graph.nodes[name].fields["x"]).double()
        x[name] = rows @ p(f"projections.{place}.weight").T + p(f"projections.{place}.bias")
    for layer in (0, 1):
        wanted = types if layer == 0 else ["paper"]
        out = {
            name: x[name] @ p(layer, f"own.{place}.weight").T + p(layer, f"own.{place}.bias")
            for place, name in enumerate(wanted)
        }
        read = [kind for kind in kinds if kind[2] in wanted]
        for weight, kind in zip(p(layer, "weight"), read, strict=True):
            out[kind[2]] = out[kind[2]] + lists[kind] @ x[kind[0]] @ weight
        x = {name: functional.relu(rows) for name, rows in out.items()} if layer == 0 else out
    return x["paper"]


def graph_for(model):
    if model != "rgcn":
        return community_graph(120)
    graph = typed_graph(90)
    authors = graph.nodes["author"].count
    x = np.random.default_rng(5).normal(size=(authors, 3)).astype(np.float32)
    return Graph({**graph.nodes, "author": NodeSet(authors, {"x": x})}, graph.edges, "papers")


def in_float64(session):
    """The same session, computed in float64."""
    session.learned.double()
    pull = session.inputs.pull
    session.inputs.pull = lambda name, ids: pull(name, ids).double()


WAYS = [(model, bins, False) for model in ("gcn", "sage", "gat", "rgcn") for bins in (1, 3, 17)]
IN_PLACE = [(model, bins, True) for model in ("gcn", "sage") for bins in (2, 3, 17)]


@pytest.mark.parametrize(
    ("model", "bins", "in_place", "dtype"),
    [
        # float64 tells whether losses are right, and three bins of float32 what rounding does. Many bins take long.
        pytest.param(*way, dtype, marks=[pytest.mark.long] * is_seldom(*way[:2], dtype))
        for way in WAYS + IN_PLACE
        for dtype in EXACT
    ],
)
def test_losses_and_gradients_of_plain_torch(model, bins, in_place, dtype):
    graph = graph_for(model)
    fields = {"graph": "", "sampler": "whole", "layers": 2, "hidden": 16, "heads": 2, "dropout": 0.0, "device": "cpu"}
    # With seed 0 a rectifier of GAT has an input so near to zero that float32 and float64 take different sides of it.
    job = make_job({**fields, "model": model, "bins": bins, "lr": 0.01, "epochs": EPOCHS, "threads": 1, "seed": 1})
    session = make_session(job, graph)
    if in_place:
        session.execution.restore([asdict(Decision([bins] * 2, "host", False, False, 0, in_place=True))])
    if dtype == torch.float64:
        in_float64(session)
    learned = {
        name: values.detach().double().clone().requires_grad_() for name, values in session.model.named_parameters()
    }
    optimiser = torch.optim.Adam(learned.values(), lr=0.01)
    target = graph.nodes["paper" if model == "rgcn" else "node"]
    train, y = torch.from_numpy(target.splits["train"]), torch.from_numpy(target.fields["y"])

    def p(*place):
        return learned[place[0] if len(place) == 1 else f"convolutions.{place[0]}.{place[1]}"]

    def reference():
        optimiser.zero_grad()
        out = relation_outputs(graph, p) if model == "rgcn" else plain_outputs(graph, model, p)
        loss = functional.cross_entropy(out[train], y[train])
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    schedule = Schedule(session.task.items, session.task.batch_size, 0, EPOCHS)
    with session.execution.steps(schedule, START, lambda position: 1, lambda *_: None) as steps:
        for (step,) in steps:
            assert step.loss == pytest.approx(reference(), rel=EXACT[dtype])
            for name, values in session.model.named_parameters():
                largest = float(learned[name].grad.abs().max())
                bound = 10 * EXACT[dtype] * max(largest, 1e-3)
                torch.testing.assert_close(values.grad.double(), learned[name].grad, rtol=0, atol=bound, msg=name)
    assert step.position.epoch == EPOCHS - 1
    assert session.execution.facts()["in_place"] == in_place
