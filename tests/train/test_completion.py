"""Knowledge graph completion on one machine: it learns, resumes bit for bit, is evaluated and used."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from test_resume import Trouble, assert_same_runs, crash

from knowledge_graph import RELATIONS, SCORER_CASES, TRIPLES, family_graph, shop_graph
from penstock.api import train
from penstock.graph.convert import load
from penstock.train.tasks.triple_losses import TRIPLE_LOSSES
from penstock.train.triple_options import TripleOptions
from penstock.train.use import evaluate_run, predict_run
from refusals import refused
from training_graphs import facts_of, lines_of, trained


@pytest.mark.parametrize("name", SCORER_CASES)
def test_every_scorer_learns(name, tmp_path):
    """Chance is a mean reciprocal rank of about 0.1 among 48 entities."""
    epochs = {"rotate": 60, "transe": 60}.get(name, 40)
    run = trained(family_graph(), tmp_path / "run", epochs=epochs, evaluate_every=0, **TRIPLES, **SCORER_CASES[name])
    losses = [line["loss"] for line in lines_of(run.path) if "loss" in line]
    assert losses[-1] < losses[0]
    assert set(run.test) == {"mrr", "hits@1", "hits@3", "hits@10"}
    assert run.test["mrr"] > 0.25, run.test
    assert facts_of(run.path)["task"] == "knowledge-graph-completion"


@pytest.mark.parametrize("name", ["rotate", "complex"])
def test_a_run_that_was_interrupted_has_the_same_bits(name, tmp_path):
    graph, fields = (
        family_graph(),
        {**TRIPLES, **SCORER_CASES[name], "epochs": 3, "negatives_power": 0.75, "input_dropout": 0.1},
    )
    whole = trained(graph, tmp_path / "whole", **fields)
    with refused("unexpected-failure"):
        trained(graph, tmp_path / "run", **fields, checkpoint_steps=3, progress=Trouble(5, crash))
    assert_same_runs(whole, train(graph, resume=tmp_path / "run"))


@pytest.mark.parametrize("graph", [family_graph(), shop_graph()], ids=["one type", "two types"])
def test_an_rgcn_encodes_entities(graph, tmp_path):
    fields = {
        "task": "knowledge-graph-completion",
        "model": "rgcn",
        "reverse_edges": True,
        "embedding": 16,
        "corrupt": "both",
    }
    fields |= {"scorer": "distmult", "fanouts": [4, 4], "hidden": 16, "batch_size": 50, "epochs": 2, "dropout": 0.0}
    run = trained(graph, tmp_path / "run", **fields)
    assert 0 < run.test["mrr"] < 1
    again = evaluate_run(run.path, ["val", "test"], graph)
    assert again["test"] == run.test and again["val"] == run.val


def test_without_a_scorer_rows_are_complex(tmp_path):
    fields = {**TRIPLES, "epochs": 1, "embedding": 16}
    run, named = (trained(family_graph(), tmp_path / name, **fields, scorer=name) for name in ("auto", "complex"))
    assert run.test == named.test


def test_two_types_are_ranked_within_their_own(tmp_path):
    run = trained(shop_graph(), tmp_path / "run", epochs=1, **TRIPLES, **SCORER_CASES["distmult"])
    out = tmp_path / "scores.parquet"
    assert predict_run(run.path, out, graph=shop_graph()) == 16
    table = pq.read_table(out)
    assert table.column_names == ["head", "relation", "tail", "score", "tail_rank", "head_rank"]
    buys = np.array([word == "buys" for word in table["relation"].to_pylist()])
    assert max(np.array(table["tail_rank"])[buys]) <= 20
    both = np.concatenate([table["tail_rank"], table["head_rank"]])
    assert np.mean(1 / both) == pytest.approx(run.test["mrr"])


def test_triples_are_held_out_where_the_graph_holds_none_out(tmp_path):
    graph = family_graph(hold_out=False)
    run = trained(
        graph, tmp_path / "run", task="knowledge-graph-completion", epochs=1, **TRIPLES, **SCORER_CASES["complex"]
    )
    assert 0 < run.val["mrr"] <= 1


def test_other_relations_are_refused(tmp_path):
    run = trained(family_graph(), tmp_path / "run", epochs=1, **TRIPLES, **SCORER_CASES["complex"])
    with refused("mismatched-inputs"):
        evaluate_run(run.path, ["test"], shop_graph())
    assert json.loads((run.path / "run.json").read_text())["labels"]["words"] == list(RELATIONS)


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"scorer": "dot"}, "unsupported-combination dot distmult"),
        (
            {"scorer": "complex", "edge_type": "entity__next__entity", "task": "knowledge-graph-completion"},
            "conflicting-options edge_type",
        ),
        ({"scorer": "complex", "regulariser": "n3"}, "conflicting-options regularisation"),
        ({"scorer": "complex", "link_loss": "softmax", "adversarial": 1.0}, "conflicting-options adversarial"),
        ({"scorer": "complex", "negatives": "in-batch"}, "unknown-name in-batch"),
        ({"scorer": "complex", "embedding": 15}, "invalid-value complex 15"),
        ({"scorer": "complex", "layers": 2}, "invalid-document layers"),
        ({"scorer": "complex", "sampler": "labor"}, "invalid-document labor"),
        ({"scorer": "complex", "model": "rgcn", "sampler": "seeds"}, "unsupported-combination seeds"),
        ({"scorer": "complex", "metric": "roc-auc"}, "unsupported-combination roc-auc"),
    ],
)
def test_what_would_be_ignored_is_refused(fields, says, tmp_path):
    with refused(says):
        trained(family_graph(), tmp_path / "run", **{**TRIPLES, **fields})
    assert not (tmp_path / "run").exists()


def test_a_model_without_layers_needs_rows_as_wide_as_the_task(tmp_path):
    graph = family_graph()
    graph.nodes["entity"].fields["x"] = np.zeros((48, 5), np.float32)
    with refused("unsupported-combination embedding 5 16"):
        trained(graph, tmp_path / "run", **TRIPLES, **SCORER_CASES["complex"])


@pytest.mark.parametrize("name", TRIPLE_LOSSES)
@pytest.mark.parametrize("adversarial", [0.0, 1.0])
def test_what_does_not_count_changes_no_loss_and_has_no_gradient(name, adversarial):
    options, loss = TripleOptions(adversarial=adversarial, margin=2.0), TRIPLE_LOSSES[name]
    true, false = torch.tensor([0.5, -1.0]), torch.tensor([[0.1, 2.0], [1.0, 0.3]])
    masked = torch.cat([false, torch.full((2, 3), -torch.inf)], 1).requires_grad_()
    torch.testing.assert_close(loss(true, masked, options), loss(true, false, options))
    loss(true, masked, options).sum().backward()
    assert torch.isfinite(masked.grad).all() and (masked.grad[:, 2:] == 0).all()
    none = loss(true, torch.full((2, 3), -torch.inf), options)
    assert torch.isfinite(none).all()


def test_the_page_s_example_works(tmp_path, monkeypatch, capsys):
    """Word for word, in a folder of its own."""
    page = (Path(__file__).parents[2] / "docs" / "knowledge-graphs.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "knowledge-graphs.md", "exec"), {})
    mrr, *hits = map(float, capsys.readouterr().out.split()[-4:])
    assert 0 < mrr <= 1 and sorted(hits) == hits


DATA = Path(__file__).parents[3] / "shared" / "data" / "fb15k-237.npz"


@pytest.mark.long
@pytest.mark.skipif(not DATA.exists(), reason="FB15k-237 is not at hand")
def test_a_little_training_on_fb15k_237_ranks_far_above_chance(tmp_path):
    """Chance is a mean reciprocal rank of about 0.0007 among 14,541 entities."""
    fields = {"model": "embedding", "embedding": 32, "scorer": "complex", "corrupt": "both", "inverse_relations": True}
    fields |= {"negatives": "joint", "negatives_per_edge": 256, "link_loss": "softmax", "batch_size": 2000}
    fields |= {"optimiser": "Adagrad", "lr": 0.1, "embedding_optimiser": "adagrad", "embedding_lr": 0.1}
    run = trained(load(DATA), tmp_path / "run", epochs=2, evaluate_every=0, **fields)
    assert run.test["mrr"] > 0.1, run.test
