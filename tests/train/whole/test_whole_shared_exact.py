"""Workers that train on one whole graph, in float64: the losses of one, which are those of plain torch."""

import numpy as np
import pytest
from test_whole_exact import EPOCHS, graph_for, in_float64

from penstock.train.whole.shared import execution
from whole_threads import train_in_threads

EXACT = 1e-9
WHOLE = {"sampler": "whole", "layers": 2, "hidden": 16, "heads": 2, "dropout": 0.2, "lr": 0.01, "threads": 1}
WORKERS = [1, 2, 4, 8]
USUAL = {(4, 3)}
"""Workers and bins that are always tried; others on long days."""


@pytest.fixture(scope="module")
def expected():
    """The losses of one worker with one bin, by model."""
    found = {}

    def losses(model):
        if model not in found:
            found[model] = trained(model, 1, bins=1)
        return found[model]

    return losses


def trained(model, world, **fields):
    workers, _ = train_in_threads(graph_for(model), world, EPOCHS, prepare=in_float64, model=model, **WHOLE, **fields)
    return workers[0][0]


@pytest.mark.parametrize(
    "world, bins",
    [
        pytest.param(world, bins, marks=[] if (world, bins) in USUAL else pytest.mark.long)
        for world in WORKERS
        for bins in (1, 3, 17)
    ],
)
@pytest.mark.parametrize(
    "model, exchange",
    [
        pytest.param(
            model,
            exchange,
            marks=() if model == "gcn" or (exchange == "bins" and model != "sage") else pytest.mark.long,
        )
        for model in ("gcn", "sage", "gat", "rgcn")
        for exchange in ("bins", "layer", "replicate")
    ],
)
def test_losses_of_one_worker(expected, model, exchange, world, bins):
    found = trained(model, world, bins=bins, exchange=exchange)
    np.testing.assert_allclose(found, expected(model), rtol=EXACT)


@pytest.mark.parametrize("model", ["gcn", pytest.param("rgcn", marks=pytest.mark.long)])
def test_deeper_replicas(monkeypatch, model):
    """Every other vertex of every level is computed by its readers."""
    fields = {**WHOLE, "layers": 4, "model": model}
    one, _ = train_in_threads(graph_for(model), 1, EPOCHS, prepare=in_float64, **fields, bins=1)
    monkeypatch.setattr(execution, "cheaper_than", lambda *_: lambda lengths, missing: np.arange(len(lengths)) % 2 == 0)
    found, _ = train_in_threads(graph_for(model), 3, EPOCHS, prepare=in_float64, **fields, bins=3, exchange="replicate")
    assert found[0][2]["replicated_rows"] > 0
    np.testing.assert_allclose(found[0][0], one[0][0], rtol=EXACT)
