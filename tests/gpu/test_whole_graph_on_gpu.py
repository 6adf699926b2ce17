"""Training on the whole graph on a GPU: captured or not, in bins or at once, the losses are the host's."""

import numpy as np
import pytest

from training_graphs import (
    assert_same_state,
    community_graph,
    facts_of,
    lines_of,
    newest_checkpoint,
    trained,
    typed_graph,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda_device")]
WHOLE = {"sampler": "whole", "layers": 2, "epochs": 6, "evaluate_every": 2, "hidden": 16}


def losses(run):
    return [line["loss"] for line in lines_of(run.path) if line["kind"] == "epoch"]


@pytest.mark.parametrize(
    "how", [{}, {"capture": False}, {"bins": 3}, {"bins": 3, "keep": "host"}, {"bins": 2, "keep": "recompute"}], ids=str
)
@pytest.mark.parametrize(
    "fields",
    [
        {"model": "sage"},
        {"model": "gcn", "layers": 3, "clip": 1.0},
        {"model": "gat", "heads": 2},
        {"model": "sage", "norm": "batch"},
        {"model": "gin", "jump": "cat"},
    ],
    ids=str,
)
def test_losses_are_the_hosts(tmp_path, fields, how):
    graph = community_graph()
    expected = losses(trained(graph, tmp_path / "cpu", **{**WHOLE, **fields, "device": "cpu"}))
    run = trained(graph, tmp_path / "gpu", **{**WHOLE, **fields, **how, "device": "cuda"})
    np.testing.assert_allclose(losses(run), expected, rtol=1e-4)
    assert facts_of(run.path)["result"]["captured"] == (not how and fields.get("norm") != "batch")


def test_several_types_and_learned_rows(tmp_path):
    graph = typed_graph()
    fields = {**WHOLE, "model": "rgcn", "embedding": 8, "bins": 2}
    expected = losses(trained(graph, tmp_path / "cpu", **fields, device="cpu"))
    np.testing.assert_allclose(losses(trained(graph, tmp_path / "gpu", **fields, device="cuda")), expected, rtol=1e-4)


def test_captured_steps_repeat_their_bits(tmp_path):
    graph = community_graph()
    runs = [trained(graph, tmp_path / name, **{**WHOLE, "steps_per_epoch": 2, "device": "cuda"}) for name in ("a", "b")]
    assert_same_state(*(newest_checkpoint(run.path)["learned"] for run in runs))


def test_mostly_zero_features(tmp_path):
    rng = np.random.default_rng(0)
    graph = community_graph()
    (nodes,) = graph.nodes.values()
    nodes.fields["x"] = ((rng.random((nodes.count, 400)) < 0.02) * rng.random((nodes.count, 400))).astype(np.float32)
    for model in ("gcn", "sage"):
        fields = {**WHOLE, "model": model}
        expected = losses(trained(graph, tmp_path / f"cpu-{model}", **fields, device="cpu"))
        found = losses(trained(graph, tmp_path / f"gpu-{model}", **fields, device="cuda"))
        np.testing.assert_allclose(found, expected, rtol=1e-4)
