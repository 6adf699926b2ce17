"""What batches read of other machines, counted before a run."""

import numpy as np
import pytest
from pytest import approx

from penstock.pipeline.schedule import Schedule
from penstock.plan.changes import CountedBatches
from penstock.sampling import NeighbourSampler
from training_graphs import community_graph

JOB = {"sampler": "neighbour", "fanouts": [4, 3], "batch_size": 30}


def counted(job=JOB, graph=None):
    graph = graph or community_graph()
    part_of = np.random.default_rng(0).integers(0, 2, graph.num_nodes)
    return CountedBatches(graph, job, part_of, [0, 1]), graph, part_of


def test_plain_reads_are_those_of_batches():
    batches, graph, part_of = counted()
    sampler, rows = NeighbourSampler(graph, [4, 3]), []
    schedule = Schedule(np.asarray(graph.nodes["node"].splits["train"]), 30, 0)
    for number, planned in zip(range(24), schedule.from_position(), strict=False):
        ordered = planned.seeds[np.lexsort((planned.seeds, part_of[planned.seeds]))]
        middle = round(len(ordered) / 2)
        for rank, seeds in enumerate((ordered[:middle], ordered[middle:])):
            vertices = sampler.sample(seeds, planned.key).vertices["node"]
            rows += [(part_of[vertices] != rank).sum()] if number >= 16 else []
    assert batches.plain(0.0).rows == approx(sum(rows) / 8)


def test_a_larger_cache_has_more_of_the_rows():
    batches, graph, part_of = counted(graph=community_graph(seed=1))
    none, tenth, whole = (batches.plain(share) for share in (0.0, 0.1, 100.0))
    assert none.cache_hits == 0 < 0.1 * none.rows < tenth.cache_hits < 0.9 * whole.rows < whole.cache_hits
    (edges,) = graph.edges.values()
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(edges.indptr))
    named = np.unique(edges.indices[(part_of[targets] == 0) & (part_of[edges.indices] == 1)])
    assert none.halos[0] == len(named)


def test_shared_random_numbers_read_fewer_rows_and_a_bias_still_fewer():
    batches, _, _ = counted()
    plain, alike, biased = batches.plain(0.0), batches.explained(0.0), batches.explained(0.3)
    assert biased.rows < alike.rows < plain.rows
    assert biased.edges < alike.edges == approx(plain.edges, rel=0.25)
    assert 0 < biased.readers < biased.lists


@pytest.mark.parametrize(
    "job",
    [
        {"sampler": "labor"},
        {"sampler": "ladies", "fanouts": [40, 40]},
        {"sampler": "cluster", "clusters": 8, "batch_size": 2, "layers": 2},
    ],
)
def test_other_samplers_are_counted(job):
    found = counted({**JOB, **job})[0].plain(0.1)
    assert 0 < found.cache_hits < found.rows and found.edges > 0
