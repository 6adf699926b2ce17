"""What edges carry, on one machine and on clusters: pulled from the parts' owners, the same losses and weights."""

import pytest

from cluster_runs import JOB, assert_same_losses, cluster_file, in_parts, machines, run_on
from training_graphs import assert_same_state, carrying_graph, facts_of, newest_checkpoint, trained

ROUNDING = 1e-4
MODULE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.own, self.edge = nn.Linear(inputs, outputs), nn.Linear(3, outputs)

    def forward(self, x, edge_index, edge_attr, edge_weight=None):
        source, target = edge_index
        messages = (self.own(x)[source] + self.edge(edge_attr)) * edge_weight[:, None]
        return self.own(x).index_add(0, target, messages)
"""


def both(folder, parts, cluster, **fields):
    """A job trained on one machine and on a cluster: both runs."""
    saved = carrying_graph().save(folder / "graph")
    one = trained(saved, folder / "one", **{**JOB, "epochs": 2, **fields})
    file = cluster_file(folder, partition=in_parts(saved, parts, folder), **cluster)
    return run_on(file, saved.path, folder / "run", **{"epochs": 2, **fields}), one


@pytest.mark.parametrize(
    "parts, samplers, fields",
    [
        (4, 1, {"model": "gine", "edge_features": ["edge_attr", "far"]}),
        pytest.param(1, 0, {"model": "gatv2", "edge_features": ["auto"], "heads": 2}, marks=pytest.mark.long),
        pytest.param(2, 0, {"model": "transformer", "edge_features": ["far"], "heads": 2}, marks=pytest.mark.long),
        (3, 1, {"model": "gcn", "edge_weight": "auto"}),
        pytest.param(
            4,
            0,
            {"model": "gine", "edge_features": ["far"], "task": "link-prediction", "batch_size": 200, "epochs": 1},
            marks=pytest.mark.long,
        ),
    ],
)
def test_one_worker_has_the_same_bits(tmp_path, parts, samplers, fields):
    run, one = both(
        tmp_path, parts, {"machines": machines(1, *([0] if parts > 1 else [])), "samplers": samplers}, **fields
    )
    assert_same_losses(run.path, one.path, 0)
    assert_same_state(newest_checkpoint(run.path)["learned"], newest_checkpoint(one.path)["learned"])
    assert run.facts["result"]["test"] == one.test


@pytest.mark.parametrize("wire_type", ["stored", pytest.param("float16", marks=pytest.mark.long)])
def test_modules_of_two_workers_pull_rows_of_edges(tmp_path, wire_type):
    """Rows that are stored as float16 lose nothing by the narrow way; weights are powers of two."""
    (tmp_path / "mine.py").write_text(MODULE)
    fields = {"module": f"{tmp_path}/mine.py:Net", "edge_weight": "auto", "edge_features": ["auto"], "fanouts": [4]}
    run, one = both(tmp_path, 2, {"machines": machines(1, 1), "wire_type": wire_type}, **fields)
    assert_same_losses(run.path, one.path, ROUNDING if wire_type == "stored" else 0.05)
    assert facts_of(run.path)["task"] == "node-classification"


@pytest.mark.parametrize(
    "model",
    [
        {"model": "gcn", "edge_weight": "auto"},
        {"model": "gine", "edge_features": ["edge_attr", "far"], "exchange": "replicate"},
        pytest.param({"model": "gatv2", "edge_features": ["far"], "heads": 2}, marks=pytest.mark.long),
        pytest.param({"model": "transformer", "edge_features": ["edge_attr"], "bins": 3}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_the_whole_graph_among_workers(tmp_path, model):
    """Weights are in the lists that workers exchange; rows of edges are read for every bin, before the first epoch."""
    fields = {"sampler": "whole", "layers": 2, "dropout": 0.0, **model}
    run, one = both(tmp_path, 2, {"machines": machines(1, 1)}, **fields)
    assert_same_losses(run.path, one.path, ROUNDING)
