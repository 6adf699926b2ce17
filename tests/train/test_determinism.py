"""The same seed gives the same weights, however the batches are prepared."""

import pytest

from training_graphs import (
    assert_same_state,
    best_checkpoint,
    community_graph,
    lines_of,
    newest_checkpoint,
    same_state,
    trained,
    typed_graph,
)

PIPELINES = [
    {"sample_threads": 2, "sample_depth": 1, "gather_threads": 2, "gather_depth": 1},
    {"sample_threads": 4, "sample_depth": 7, "gather_threads": 3, "gather_depth": 5, "transfer_depth": 4},
    {"sample_threads": 3, "seeds_depth": 1, "sample_depth": 1, "transfer_depth": 1, "trace_batches": 0},
]


def values_of(run):
    """What was measured in every epoch, without seconds and memory."""
    return [(r["epoch"], r["loss"], r.get("val")) for r in lines_of(run) if r["kind"] == "epoch"]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Graphs and jobs with the runs that the others must equal: one sampling thread."""
    folder = tmp_path_factory.mktemp("one-thread")
    jobs = {
        "features": (community_graph(), {"norm": "batch"}),
        "embeddings": (community_graph(features=False), {"embedding": 8, "model": "gat", "attention_dropout": 0.2}),
        "typed": (typed_graph(), {"model": "rgcn", "embedding": 8}),
        "links": (community_graph(), {"task": "link-prediction", "batch_size": 128, "rank_against": 20}),
    }
    return {name: (graph, job, trained(graph, folder / name, **job)) for name, (graph, job) in jobs.items()}


@pytest.mark.covering(1)
@pytest.mark.parametrize("pipeline", PIPELINES, ids=["2 threads", "4 threads", "3 threads, shallow"])
@pytest.mark.parametrize("name", ["features", "embeddings", "typed", "links"])
def test_weights_do_not_depend_on_threads_or_depths(cases, name, pipeline, tmp_path):
    graph, job, first = cases[name]
    run = trained(graph, tmp_path / "run", **job, **pipeline)
    assert_same_state(newest_checkpoint(first.path), newest_checkpoint(run.path))
    assert_same_state(best_checkpoint(first.path), best_checkpoint(run.path))
    assert values_of(first.path) == values_of(run.path)
    assert (first.val, first.test) == (run.val, run.test)
    assert first.test


def test_another_seed_gives_other_weights(cases, tmp_path):
    graph, job, first = cases["features"]
    run = trained(graph, tmp_path / "run", **job, seed=1)
    assert not same_state(newest_checkpoint(first.path)["learned"], newest_checkpoint(run.path)["learned"])
    assert [loss for _, loss, _ in values_of(first.path)] != [loss for _, loss, _ in values_of(run.path)]


def test_a_graph_folder_trains_like_the_graph_in_memory(cases, tmp_path):
    graph, job, first = cases["features"]
    graph.save(tmp_path / "graph")
    run = trained(str(tmp_path / "graph"), tmp_path / "run", **job)
    assert_same_state(newest_checkpoint(first.path), newest_checkpoint(run.path))
