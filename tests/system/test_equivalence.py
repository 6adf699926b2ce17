"""The same job on one machine and on clusters: the same batches, the same losses, and where it can be the same bits."""

import numpy as np
import pytest

from cluster_runs import JOB, assert_same_losses, cluster_file, in_parts, machines, run_on
from penstock.cluster.run import resume_cluster_run
from penstock.train.run_files.run_folder import RunFolder
from refusals import refused
from training_graphs import assert_same_state, community_graph, lists_of, newest_checkpoint, trained, typed_graph

HARD = {"weight": "w", "schedule": "ExponentialLR", "schedule_options": {"gamma": 0.9}, "model": "gcn"}
"""Edge weights and a rate that changes; the rest of the tests have dropout already."""
ROUNDING = 1e-4
"""Losses of a few steps: sums of 32-bit numbers in another order."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A graph with edge weights, trained on one machine twice: plainly, and with everything that can be asked for."""
    folder = tmp_path_factory.mktemp("equivalence")
    graph = community_graph()
    (edges,) = graph.edges.values()
    edges.fields["w"] = np.random.default_rng(1).uniform(0.5, 2.0, edges.count).astype(np.float32)
    saved = graph.save(folder / "graph")
    trained(saved, folder / "plain", **JOB)
    trained(saved, folder / "hard", **JOB, **HARD)
    return folder, saved


@pytest.fixture(scope="module")
def pair(place):
    """Two machines with a worker each, gradients summed among them, batches drawn by the workers."""
    folder, graph = place
    cluster = cluster_file(folder, machines=machines(1, 1), partition=in_parts(graph, 2, folder))
    return run_on(cluster, graph.path, folder / "pair").path


@pytest.mark.parametrize("parts, samplers", [pytest.param(1, 0, marks=pytest.mark.long), (4, 1)])
def test_one_worker_has_the_same_bits_however_the_graph_is_cut(place, tmp_path, parts, samplers):
    folder, graph = place
    spread = machines(*([1, 0, 0, 0][:parts]))
    cluster = cluster_file(tmp_path, machines=spread, partition=in_parts(graph, parts, folder), samplers=samplers)
    run = run_on(cluster, graph.path, tmp_path / "run", **HARD)
    assert_same_losses(run.path, folder / "hard", 0)
    ours, theirs = newest_checkpoint(run.path), newest_checkpoint(folder / "hard")
    assert_same_state(ours["learned"], theirs["learned"])
    assert_same_state(ours["optimiser"], theirs["optimiser"])


def test_two_workers_lose_as_one(place, pair):
    assert_same_losses(pair, place[0] / "plain", ROUNDING)


@pytest.mark.long
def test_samplers_of_their_own_change_no_bit(place, pair, tmp_path):
    folder, graph = place
    cluster = cluster_file(tmp_path, machines=machines(1, 1), partition=in_parts(graph, 2, folder), samplers=2)
    run = run_on(cluster, graph.path, tmp_path / "run")
    assert_same_losses(run.path, pair, 0)
    assert_same_state(newest_checkpoint(run.path), newest_checkpoint(pair))


@pytest.mark.long
def test_more_epochs_later_are_as_many_at_once(place, pair, tmp_path):
    """A run that has ended goes on only when it is told to."""
    folder, graph = place
    cluster = cluster_file(tmp_path, machines=machines(1, 1), partition=in_parts(graph, 2, folder))
    run = run_on(cluster, graph.path, tmp_path / "run", epochs=2).path
    assert resume_cluster_run(run).facts["result"]["epochs"] == 2
    with refused("value-out-of-range 2 --epochs"):
        resume_cluster_run(run, epochs=1)
    assert resume_cluster_run(run, epochs=3).facts["state"] == "finished"
    assert_same_losses(run, pair, 0)
    assert_same_state(newest_checkpoint(run), newest_checkpoint(pair))


@pytest.mark.long
def test_patience_ends_a_run_at_the_same_epoch(place, tmp_path):
    """Its best model is tested; a rate that never gets better has no gain after the first epochs."""
    folder, graph = place
    fields = {
        "epochs": 30,
        "patience": 2,
        "lr": 0.5,
        "schedule": "ReduceLROnPlateau",
        "schedule_options": {"patience": 0},
    }
    one = trained(graph, tmp_path / "one", **{**JOB, **fields})
    cluster = cluster_file(tmp_path, machines=machines(1, 0), partition=in_parts(graph, 2, folder))
    run = run_on(cluster, graph.path, tmp_path / "run", **fields)
    assert run.facts["state"] == one.state == "stopped-early"
    ours, theirs = newest_checkpoint(run.path)["standing"], newest_checkpoint(one.path)["standing"]
    assert (ours["epoch"], ours["best_epoch"], ours["best_value"]) == (
        theirs["epoch"],
        theirs["best_epoch"],
        theirs["best_value"],
    )
    assert_same_state(newest_checkpoint(run.path)["learned"], newest_checkpoint(one.path)["learned"])
    assert run.facts["result"]["test"] == pytest.approx(one.result["test"])


def test_unequal_machines_and_servers(place, tmp_path):
    """Three workers of different speed, parts without a worker, gradients summed by two servers."""
    folder, graph = place
    spread = [
        {"name": "fast", "workers": 1, "speed": 2.0},
        {"name": "bare", "workers": 0},
        {"name": "slow", "workers": 2},
    ]
    parts = in_parts(graph, 4, folder)
    cluster = cluster_file(tmp_path, machines=spread, partition=parts, samplers=1, reduce="servers", servers=2)
    run = run_on(cluster, graph.path, tmp_path / "run", **HARD)
    assert_same_losses(run.path, folder / "hard", ROUNDING)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"sampler": "labor", "shared_draws": 2}, marks=pytest.mark.long),
        {"time": "t", "seed_time": "when", "epochs": 2},
        pytest.param(
            {"time": "t", "seed_time": "when", "model": "transformer", "heads": 2, "time_width": 4, "epochs": 1},
            marks=pytest.mark.long,
        ),
        pytest.param({"time": "node:when", "epochs": 2}, marks=pytest.mark.long),
        pytest.param(
            {"time": "node:when", "model": "gatv2", "heads": 2, "time_width": 4, "epochs": 1}, marks=pytest.mark.long
        ),
        pytest.param({"time": "t", "seed_time": "when", "features": "colour", "clip": 0.5}, marks=pytest.mark.long),
    ],
)
def test_other_ways_to_draw(tmp_path, fields):
    """LABOR; and by times, of edges or vertices, with features or with learned rows, and with ages of edges.

    Two workers, a sampler each.
    """
    graph = community_graph()
    (edges,), (nodes,) = graph.edges.values(), graph.nodes.values()
    rng = np.random.default_rng(4)
    edges.fields["t"] = rng.integers(0, 100, edges.count)
    nodes.fields["when"] = rng.uniform(20, 100, nodes.count)
    if fields.pop("features", None):
        del nodes.fields["x"]
        fields["embedding"] = 8
    saved = graph.save(tmp_path / "graph")
    one = trained(saved, tmp_path / "one", **{**JOB, **fields})
    cluster = cluster_file(tmp_path, machines=machines(1, 1), partition=in_parts(saved, 2, tmp_path), samplers=1)
    run = run_on(cluster, saved.path, tmp_path / "run", **fields)
    assert_same_losses(run.path, tmp_path / "one", ROUNDING)
    assert run.facts["result"]["test"] == pytest.approx(one.test, abs=ROUNDING)


@pytest.mark.long
def test_four_workers_of_one_machine(place, tmp_path):
    """With batches that have fewer seeds than there are workers."""
    _, graph = place
    trained(graph, tmp_path / "one", **{**JOB, "epochs": 1, "batch_size": 33, "optimiser": "SGD"})
    run = run_on("1x4", graph.path, tmp_path / "run", epochs=1, batch_size=33, optimiser="SGD")
    assert_same_losses(run.path, tmp_path / "one", ROUNDING)


@pytest.mark.parametrize(
    "way, learned, clip",
    [
        ({}, True, 0.4),
        pytest.param({}, True, 0.0, marks=pytest.mark.long),
        pytest.param({"reduce": "servers", "servers": 3}, False, 0.0, marks=pytest.mark.long),
        pytest.param({"reduce": "servers", "servers": 2}, True, 0.4, marks=pytest.mark.long),
    ],
)
def test_typed_graph_with_a_rare_relation(tmp_path, way, learned, clip):
    """In most batches its weights have no gradient, and must not move. Authors have features, or learned rows, whose
    gradients count in the norm that all are clipped by."""
    graph = typed_graph()
    papers = graph.nodes["paper"].count
    graph.edges["paper", "corrects", "paper"] = lists_of([0, 1, 2], [50, 60, 70], papers, papers)
    authors = graph.nodes["author"]
    if not learned:
        authors.fields["x"] = np.random.default_rng(2).normal(0, 1, (authors.count, 3)).astype(np.float32)
    saved = graph.save(tmp_path / "graph")
    fields = {"model": "sage", "dropout": 0.5, "batch_size": 15, "weight_decay": 0.01, "embedding": 8, "clip": clip}
    trained(saved, tmp_path / "one", **{**JOB, **fields})
    parts = in_parts(saved, 2, tmp_path)
    cluster = cluster_file(tmp_path, machines=machines(1, 1), partition=parts, **way)
    run = run_on(cluster, saved.path, tmp_path / "run", **fields)
    assert_same_losses(run.path, tmp_path / "one", ROUNDING)


@pytest.mark.parametrize(
    "fields, workers",
    [
        pytest.param({"model": "rgcn", "bases": 2, "input_dropout": 0.2}, [1, 1], marks=pytest.mark.long),
        pytest.param({"model": "rgcn", "blocks": 4, "input_dropout": 0.2}, [1, 1], marks=pytest.mark.long),
        ({"model": "hgt", "heads": 2, "attention_dropout": 0.3, "optimiser": "SGD", "lr": 0.1}, [1, 1]),
        # Scores of lists of one edge have no gradient but rounding, which Adam would make steps of.
        pytest.param(
            {"model": "gat", "heads": 2, "attention_dropout": 0.3, "optimiser": "SGD", "lr": 0.1},
            [2, 2],
            marks=pytest.mark.long,
        ),
        pytest.param({"model": "sage", "input_dropout": 0.2}, [2, 2], marks=pytest.mark.long),
    ],
)
def test_dropout_of_typed_graphs_goes_by_vertex(tmp_path, fields, workers):
    """Batches of fewer seeds than some workers get, so that shares lack types and relations; a sampler each."""
    saved = typed_graph().save(tmp_path / "graph")
    fields = {**fields, "dropout": 0.5, "batch_size": 7, "embedding": 8, "epochs": 2}
    trained(saved, tmp_path / "one", **{**JOB, **fields})
    parts = in_parts(saved, sum(workers), tmp_path)
    cluster = cluster_file(tmp_path, machines=machines(*workers), partition=parts, samplers=1)
    run = run_on(cluster, saved.path, tmp_path / "run", **fields)
    assert_same_losses(run.path, tmp_path / "one", ROUNDING)


@pytest.mark.long
def test_decayed_rows_of_one_hot_input_and_decided_epochs(tmp_path):
    """All rows move in every step, whoever reads them; the epochs that a job leaves open are one machine's."""
    graph = typed_graph()
    del graph.nodes["paper"].fields["x"]
    saved = graph.save(tmp_path / "graph")
    fields = {"model": "rgcn", "embedding": "one-hot", "bases": 2, "hidden": 4, "batch_size": 8, "epochs": "auto"}
    fields |= {"embedding_decay": 0.01, "weight_decay": 0.01, "evaluate_every": 0}
    one = trained(saved, tmp_path / "one", **{**JOB, **fields})
    cluster = cluster_file(tmp_path, machines=machines(1, 0), partition=in_parts(saved, 2, tmp_path))
    run = run_on(cluster, saved.path, tmp_path / "run", **fields)
    assert_same_losses(run.path, tmp_path / "one", 0)
    assert run.facts["decided"] == {"epochs": one.result["epochs"]} and run.job().epochs == one.result["epochs"]
    # What decides the order of products is in the job that every worker has.
    assert run.job().order_costs == RunFolder.open(one.path).job().order_costs != {}
    assert_same_state(newest_checkpoint(run.path)["tables"], newest_checkpoint(one.path)["tables"])


@pytest.mark.long
@pytest.mark.parametrize("wire_type", ["stored", "float16"])
def test_clipped_rows_and_times_are_one_machines(tmp_path, wire_type):
    """A vertex in many trees has one gradient, and times that float16 could not tell apart stay what they are."""
    graph = community_graph()
    (nodes,) = graph.nodes.values()
    nodes.fields["when"] = 1000 * np.random.default_rng(4).uniform(90, 91, nodes.count)
    del nodes.fields["x"]
    saved = graph.save(tmp_path / "graph")
    how = {"time": "node:when", "embedding": 8, "clip": 0.05, "optimiser": "SGD", "lr": 5.0, "epochs": 2}
    trained(saved, tmp_path / "one", **{**JOB, **how, "dropout": 0.0})
    partition = in_parts(saved, 2, tmp_path)
    cluster = cluster_file(tmp_path, machines=machines(1, 1), partition=partition, wire_type=wire_type)
    run = run_on(cluster, saved.path, tmp_path / "run", **how, dropout=0.0)
    assert_same_losses(run.path, tmp_path / "one", ROUNDING)


OWN = '''
import torch


class Net(torch.nn.Module):
    """Means of neighbours, twice."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.last = torch.nn.Linear(2 * inputs, 16), torch.nn.Linear(32, outputs)

    def forward(self, x, edge_index):
        for layer in (self.first, self.last):
            sums = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
            counts = torch.bincount(edge_index[1], minlength=len(x)).clamp(min=1)
            x = layer(torch.cat([x, sums / counts[:, None]], 1))
            x = x.relu() if layer is self.first else x
        return x
'''


@pytest.mark.parametrize("workers, tolerance", [(1, 0), pytest.param(2, 0.01, marks=pytest.mark.long)])
def test_a_module_of_ones_own(place, tmp_path, workers, tolerance):
    """Every worker imports it from its file. It sees all edges of its share at once, so that shares matter a little."""
    folder, graph = place
    (tmp_path / "mine.py").write_text(OWN)
    own = {"module": f"{tmp_path / 'mine.py'}:Net", "dropout": 0.0}
    trained(graph, tmp_path / "one", **{**JOB, **own})
    spread = machines(1, workers - 1)
    cluster = cluster_file(tmp_path, machines=spread, partition=in_parts(graph, 2, folder))
    run = run_on(cluster, graph.path, tmp_path / "run", **own)
    assert run.facts["model"] == "Net"
    assert_same_losses(run.path, tmp_path / "one", tolerance)
