"""Tasks on edges among workers that train on the whole graph: the losses of one machine."""

import numpy as np
import pytest
from test_whole_edge_tasks import EDGES, LINKS
from test_whole_exact import EPOCHS, graph_for, in_float64

from penstock.pipeline.schedule import START, Schedule
from penstock.train.build import make_session
from penstock.train.job import job_of
from training_graphs import carrying_graph, community_graph, labelled_edges
from whole_threads import train_in_threads

EXACT = 1e-9
WHOLE = {"sampler": "whole", "layers": 2, "hidden": 8, "threads": 1, "dropout": 0.2, "lr": 0.01}
CASES = {
    "links": (community_graph, LINKS),
    "ranked": (community_graph, {**LINKS, "loss": "softmax", "corrupt": "both", "negatives_per_edge": 3}),
    "in-batch": (community_graph, {**LINKS, "negatives": "in-batch", "supervision": 0.1, "scorer": "mlp"}),
    "all levels": (community_graph, {**LINKS, "jump": "cat", "model": "gcn", "layers": 3}),
    "attention": (community_graph, {**LINKS, "model": "gat", "heads": 2, "scope": "all"}),
    "classes": (labelled_edges, EDGES),
    "several types": (lambda: graph_for("rgcn"), {**LINKS, "model": "rgcn", "target": "author__writes__paper"}),
}


def all_in_float64(session):
    """Labels too: torch computes this loss in the type of its labels."""
    in_float64(session)
    label = session.task.label

    def labelled(batch):
        label(batch)
        known = batch.labels.get("true")
        if known is not None and known.dtype == np.float32:
            batch.labels["true"] = known.astype(np.float64)

    session.task.label = labelled


def one_machine(graph, fields):
    session = make_session(job_of({"graph": "g", "run": "r", "epochs": EPOCHS, **WHOLE, **fields}), graph)
    all_in_float64(session)
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.seed, EPOCHS)
    with session.execution.steps(schedule, START, lambda _: 1, lambda *_: None) as steps:
        return [step.loss for each in steps for step in each]


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case == "several types" else pytest.mark.long) for case in CASES]
)
def test_losses_of_one_machine(case):
    make, fields = CASES[case]
    graph = make()
    expected = one_machine(graph, fields)
    for world, bins, exchange in ((1, 1, "bins"), (2, 3, "bins"), (4, 3, "bins"), (4, 2, "layer")):
        how = {**WHOLE, "bins": bins, "exchange": exchange}
        workers, hub = train_in_threads(graph, world, EPOCHS, prepare=all_in_float64, **{**how, **fields})
        np.testing.assert_allclose(workers[0][0], expected, rtol=EXACT)
        assert all(losses == workers[0][0] for losses, *_ in workers) and not hub.rows


def test_several_steps_and_a_worker_without_vertices():
    graph, fields = community_graph(), {**LINKS, "steps_per_epoch": 2}
    expected = one_machine(graph, fields)
    workers, _ = train_in_threads(graph, 3, EPOCHS, (1,), all_in_float64, **{**WHOLE, **fields, "bins": 2})
    np.testing.assert_allclose(workers[0][0], expected, rtol=EXACT)


def test_bits_are_the_same_in_every_run():
    graph, fields = community_graph(), {**WHOLE, **LINKS, "bins": 3}
    found = [train_in_threads(graph, 4, **fields)[0][0][0] for _ in range(3)]
    assert found[0] == found[1] == found[2]


def test_facts_count_both_kinds_of_edges():
    graph = community_graph()
    facts = train_in_threads(graph, 2, 1, **WHOLE, **LINKS, supervision=0.4)[0][0][2]
    assert 0.3 < facts["supervised_edges"] / (facts["supervised_edges"] + facts["message_edges"]) < 0.5


@pytest.mark.parametrize("exchange", ["bins", "replicate"])
def test_rows_of_edges_beside_edges_that_are_predicted(exchange):
    """Edges that a task predicts are in no list; the others keep their rows. Rows of edges are float32."""
    fields = {**WHOLE, **LINKS, "model": "gine", "edge_features": ["edge_attr", "far"], "exchange": exchange}
    one, _ = train_in_threads(carrying_graph(), 1, 4, **fields, bins=1)
    several, _ = train_in_threads(carrying_graph(), 3, 4, **fields, bins=2)
    np.testing.assert_allclose(several[0][0], one[0][0], rtol=1e-4)
