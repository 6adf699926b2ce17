"""Fields that would be left unheard are refused before training."""

import numpy as np
import pytest

from penstock.graph.convert import load
from penstock.train.assembly import check_job
from penstock.train.batch_source import check_sampler_supports
from penstock.train.dataset.prepared_graph import choose_task
from penstock.train.job import make_job
from penstock.train.tasks import make_task
from refusals import refused
from training_graphs import SMALL, community_graph, trained, typed_graph


def check(graph, has_validation=True, **fields):
    """The fields checked against the task they make; what the task does not know of is checked alone."""
    job = make_job({**SMALL, **fields})
    plain = job.model_copy(update={"weight": None, "time": None, "sampler": "neighbour"})
    task, _ = make_task(choose_task(graph, job), graph, plain)
    check_job(job, task, has_validation)


def test_relations_among_one_type_are_learned_together(tmp_path):
    """As files of triples give them, with nothing held out; a relation that is named is learned alone."""
    lines = [f"n{i}\tbefore\tn{i + 1}\nn{i + 1}\tafter\tn{i}\n" for i in range(20)]
    (tmp_path / "triples.tsv").write_text("".join(lines))
    graph = load(tmp_path / "triples.tsv")
    assert choose_task(graph, make_job({})) == "knowledge-graph-completion"
    assert choose_task(graph, make_job({"target": "entity__before__entity"})) == "link-prediction"
    assert choose_task(typed_graph(), make_job({"label": "y"})) == "node-classification"


@pytest.fixture(scope="module")
def graph():
    return community_graph()


def test_waiting_for_validations_that_never_come(graph):
    plateau = {"schedule": "ReduceLROnPlateau"}
    with refused("conflicting-options patience 3 evaluate_every 0"):
        check(graph, patience=3, evaluate_every=0)
    with refused("split-missing patience 3"):
        check(graph, has_validation=False, patience=3)
    with refused("conflicting-options evaluate_every 0"):
        check(graph, **plateau, evaluate_every=0)
    with refused("split-missing"):
        check(graph, has_validation=False, **plateau)
    check(graph, patience=3, **plateau)
    check(graph, has_validation=False, evaluate_every=0, schedule="ConstantLR")


def test_metrics_of_one_label(graph):
    several = community_graph()
    several.nodes["node"].fields["y"] = np.eye(4, dtype=np.int64)[several.nodes["node"].y]
    with refused("unsupported-combination accuracy micro-f1"):
        check(several, metric="accuracy")
    for metric in ("auto", "micro-f1", "macro-f1", "roc-auc", "average-precision"):
        check(several, metric=metric)
    check(graph, metric="accuracy")


@pytest.mark.parametrize(
    "sampler", ["labor", "fastgcn", "ladies", "saint-vertex", "saint-edge", "saint-walk", "cluster"]
)
def test_what_only_neighbour_sampling_obeys(sampler, graph):
    for fields, said in (
        ({"weight": "w"}, "`weight` 'w'"),
        ({"time": "t"}, "`time` 't'"),
        ({"replace": True}, "`replace`"),
    ):
        with refused(f"unsupported-combination {sampler} {said}"):
            check_sampler_supports(make_job({"graph": "g", "sampler": sampler, **fields}), graph)
        check_sampler_supports(make_job({"graph": "g", **fields}), graph)
    check(graph, sampler=sampler)


@pytest.mark.parametrize("make", [community_graph, typed_graph])
def test_a_graph_without_relations_trains_an_mlp_as_if_it_had_some(make, tmp_path):
    graph, alone = make(), make()
    alone.edges.clear()
    linked = trained(graph, tmp_path / "linked", model="mlp")
    with refused("missing-data"):
        trained(alone, tmp_path / "refused")
    run = trained(alone, tmp_path / "alone", model="mlp")
    assert (run.state, run.val, run.test) == ("finished", linked.val, linked.test)
    assert run.result["train_loss"] == pytest.approx(linked.result["train_loss"], rel=1e-5)
