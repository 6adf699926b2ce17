"""Knowledge graph completion on one machine: it learns, resumes bit for bit, is evaluated and used."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from test_resume import Trouble, assert_same_runs, crash

from knowledge_graph import RELATIONS, SCORER_CASES, SOFTMAX, TRIPLES, family_graph, shop_graph, symmetric_graph
from penstock.api import train
from penstock.graph.convert import load
from penstock.train.build import make_session
from penstock.train.job import make_job
from penstock.train.job_options import TripleOptions
from penstock.train.tasks.triples import TRIPLE_LOSSES
from penstock.train.use import evaluate_run, predict_run
from refusals import refused
from training_graphs import facts_of, lines_of, trained


# Below, ComplEx learns a relation that is symmetric.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name == "complex")) for name in SCORER_CASES]
)
def test_every_scorer_learns(name, tmp_path):
    """Chance is a mean reciprocal rank of about 0.1 among 48 entities."""
    epochs = {"rotate": 60, "transe": 60}.get(name, 40)
    run = trained(family_graph(), tmp_path / "run", epochs=epochs, evaluate_every=0, **TRIPLES, **SCORER_CASES[name])
    losses = [line["loss"] for line in lines_of(run.path) if "loss" in line]
    assert losses[-1] < losses[0]
    assert set(run.test) == {"mrr", "hits@1", "hits@3", "hits@10"}
    assert run.test["mrr"] > 0.25, run.test
    assert facts_of(run.path)["task"] == "knowledge-graph-completion"


@pytest.mark.parametrize("name", ["complex", pytest.param("distmult", marks=pytest.mark.long)])
def test_a_symmetric_relation_is_learned(name, tmp_path):
    """Only the other direction of each held-out pair is known. Relations around one reach 0.2 to 0.3: every entity is
    its own best answer then."""
    fields = {"scorer": name, "embedding": 32, "batch_size": 128, "inverse_relations": True, "epochs": 25, **SOFTMAX}
    fields |= {"optimiser": "Adagrad", "lr": 0.1, "embedding_optimiser": "adagrad", "embedding_lr": 0.1}
    fields |= {"task": "knowledge-graph-completion", "evaluate_every": 0}
    run = trained(symmetric_graph(), tmp_path / "run", **{**TRIPLES, **fields})
    assert run.test["mrr"] > 0.6, run.test


INITIAL = {
    "complex": ("normal", 0.1, "normal", 0.1),
    "distmult": ("normal", 0.1, "normal", 0.1),
    "transe": ("uniform", (9 + 2) / 64, "uniform", (9 + 2) / 64),
    "rotate": ("uniform", (9 + 2) / 32, "uniform", np.pi),
}
"""By scorer, of rows 64 wide and a margin of 9: how entities' rows and relations' vectors begin."""


def begun(graph, **fields):
    """The rows of entities and the vectors of relations before the first step."""
    fields = {**TRIPLES, "task": "knowledge-graph-completion", "embedding": 64, **fields}
    session = make_session(make_job(fields), graph)
    (table,) = session.inputs.tables.values()
    return table.rows, session.task.head.vectors.detach().numpy()


def assert_drawn(values, kind, scale):
    """A distribution around zero, by its mean, its deviation and how far it goes."""
    deviation = scale if kind == "normal" else scale / np.sqrt(3)
    assert abs(values.mean()) < 5 * deviation / np.sqrt(values.size)
    assert abs(values.std() / deviation - 1) < 5 / np.sqrt(values.size)
    inside = np.mean(np.abs(values) < scale)
    assert inside == 1 if kind == "uniform" else abs(inside - 0.6827) < 2.5 / np.sqrt(values.size)


@pytest.mark.parametrize("name", INITIAL)
def test_rows_begin_as_the_scorers_authors_have_them(name):
    rows, vectors = begun(family_graph(400), scorer=name, inverse_relations=True)
    assert_drawn(rows, *INITIAL[name][:2])
    assert_drawn(vectors, *INITIAL[name][2:])


@pytest.mark.parametrize(
    "init, kind, rows_by, vectors_by",
    [
        ("normal:0.02", "normal", 0.02, 0.02),
        ("uniform:0.3", "uniform", 0.3, 0.3),
        ("xavier", "uniform", (6 / 464) ** 0.5, (6 / 72) ** 0.5),
    ],
)
def test_a_job_says_how_rows_begin(init, kind, rows_by, vectors_by):
    rows, vectors = begun(family_graph(400), scorer="complex", inverse_relations=True, embedding_init=init)
    assert_drawn(rows, kind, rows_by)
    assert_drawn(vectors, kind, vectors_by)


def test_rows_of_transe_by_roots_of_squares_are_about_as_long_as_one():
    rows, vectors = begun(family_graph(400), scorer="transe", distance=2)
    for values in (rows, vectors):
        np.testing.assert_allclose(np.linalg.norm(values, axis=1).mean(), 1, rtol=0.05)


def test_relations_around_one_can_still_be_asked_for():
    """As releases before `embedding_init` had them."""
    for name in ("complex", "distmult"):
        rows, vectors = begun(family_graph(400), scorer=name, inverse_relations=True, embedding_init="identity")
        assert_drawn(rows, "uniform", 1 / 8)
        real = vectors[:, : 32 if name == "complex" else 64]
        assert_drawn(real - 1, "normal", 0.1)


def test_where_layers_read_rows_these_begin_as_ever():
    fields = {"scorer": "distmult", "model": "rgcn", "fanouts": [4], "hidden": 16, "reverse_edges": True}
    rows, vectors = begun(family_graph(400), **fields)
    assert_drawn(rows, "uniform", 1 / 8)
    assert abs(vectors.mean()) < 0.1


@pytest.mark.parametrize("init", ["gauss:1", "normal", "normal:0", "uniform:-1", "normal:nan", "normal:inf", ""])
def test_another_beginning_is_refused(init):
    with refused("invalid-document embedding_init normal:DEVIATION"):
        make_job({"embedding_init": init})


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
            {"scorer": "complex", "target": "entity__next__entity", "task": "knowledge-graph-completion"},
            "conflicting-options target",
        ),
        ({"scorer": "complex", "regulariser": "n3"}, "conflicting-options regularisation"),
        ({"scorer": "complex", "loss": "softmax", "adversarial": 1.0}, "conflicting-options adversarial"),
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
    fields |= {"negatives": "joint", "negatives_per_edge": 256, "loss": "softmax", "batch_size": 2000}
    fields |= {"optimiser": "Adagrad", "lr": 0.1, "embedding_optimiser": "adagrad", "embedding_lr": 0.1}
    run = trained(load(DATA), tmp_path / "run", epochs=2, evaluate_every=0, **fields)
    assert run.test["mrr"] > 0.1, run.test
